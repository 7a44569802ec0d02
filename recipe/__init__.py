"""The protocol edge: API formats to conversations to tokens, and tokens back to API events.

`conversation.py` holds the nouns. `encoding/` renders a conversation as the prompt the model was trained on
and encodes it; `protocols/` reads the three request formats and writes their events and responses;
`stream.py` parses what the model says while it says it; `images.py` prepares pictures; `http.py` mounts it
all as an ASGI application. Only `http.py` and what it imports know an engine, by the public API alone.

Behaviour follows the official codec (`deepseek-recipe` 0.2.0, a test dependency) except where
`DIFFERENCES.md` says otherwise and why. Every piece of code here is our own.
"""
