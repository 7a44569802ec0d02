"""What a model says, read while it says it: reasoning, answer, tool calls."""
