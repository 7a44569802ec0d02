"""The oracle: DeepSeek-V4.1 written a second time, slowly and obviously, to check the fast path against.

Begin with `model.py`. One token, one head, one expert at a time, in float64 numpy; nothing is shared with the
fast path but the configuration and the table of layer roles. It reproduces the publisher's own numbers
(test_oracle_golden.py).
"""

from .checkpoint import load_weights
from .model import Oracle
from .trace import Draft, ImageSpan, Persisted, Trace

__all__ = ["Draft", "ImageSpan", "Oracle", "Persisted", "Trace", "load_weights"]
