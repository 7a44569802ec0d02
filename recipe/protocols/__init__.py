"""The three request formats: bodies to conversations, parser events to API events and responses."""
