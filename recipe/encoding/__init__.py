"""Conversations as prompts: rendering for V4.1 and V4, and encoding to token ids."""
