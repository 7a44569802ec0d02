"""What must hold between the fields of a configuration, one small function per rule (model_spec 1.6).

A model whose configuration breaks one of these would not crash: it would read a cache that nobody wrote or
attend to the wrong entries. So every rule is checked before a weight is touched, and a rule that fails names
the field to look at. `msgspec.structs.replace` checks nothing, so tests can build illegal variants with it.
"""

from __future__ import annotations

from collections.abc import Callable

from .config_dimensions import DIMENSION_RULES
from .config_topology import TOPOLOGY_RULES
from .config_types import ModelConfig

RULES: tuple[Callable[[ModelConfig], None], ...] = (*DIMENSION_RULES, *TOPOLOGY_RULES)
"""Sizes before topology: the latter divides by them."""


def check_rules(config: ModelConfig) -> None:
    """Raise `ConfigError` for the first rule that `config` breaks."""
    for rule in RULES:
        rule(config)
