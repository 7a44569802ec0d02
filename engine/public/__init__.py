"""Stepahead: an asyncio inference engine for DeepSeek-V4.1-Flash models.

This package is the face of the project: it re-exports what an embedding application needs and holds no code.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
