"""A toy model whose every token proves that the engine kept its books: see `model.py`."""

from .model import HashedModel
from .runner import HashedRunner
from .solo import Solo, solo

__all__ = ["HashedModel", "HashedRunner", "Solo", "solo"]
