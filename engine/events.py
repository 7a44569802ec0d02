"""The few events of an engine's life, as structured log entries; silent unless the application wants them.

They go to the standard logger `stepahead`, which has a handler that does nothing: a library that prints
uninvited is a nuisance, and one that configures logging breaks somebody's. structlog gives them their fields
(as `extra`, so any handler sees them), and is imported when the first one is wanted.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

NAME = "stepahead"
_logger = logging.getLogger(NAME)
_logger.addHandler(logging.NullHandler())


def info(event: str, **fields: Any) -> None:
    """Something ordinary: opened, closed, a trace begun."""
    _log(logging.INFO, event, fields)


def error(event: str, **fields: Any) -> None:
    """Something that ended the engine."""
    _log(logging.ERROR, event, fields)


def _log(level: int, event: str, fields: dict[str, Any]) -> None:
    if _logger.isEnabledFor(level) and _is_heard():
        _structured().log(level, event, **fields)


def _is_heard() -> bool:
    """Whether any handler but ours would see it."""
    return len(_logger.handlers) > 1 or bool(logging.getLogger().handlers)


@cache
def _structured() -> Any:
    import structlog

    return structlog.wrap_logger(
        _logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.render_to_log_kwargs],
    )
