"""Sampling parameters: ranges, defaults, and what thinking overrules. The same rules for all protocols."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..conversation import ReasoningEffort
from ..errors import ConversionError
from .options import ConversionOptions, ModelVersion

_EFFORTS: dict[str, ReasoningEffort] = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}
_TOP_P_FLOOR = 0.95
_MAX_STOPS = 16


def model_version(model: str, options: ConversionOptions) -> ModelVersion:
    version = options.model_versions.get(model)
    if version is None:
        names = ", ".join(sorted(options.model_versions))
        raise ConversionError(f"The supported API model names are {names}, but you passed {model}.")
    return version


def thinking_mode(
    thinking_type: str | None, effort: str | None, options: ConversionOptions
) -> tuple[bool, ReasoningEffort | None]:
    """Whether to think, and how hard: an explicit switch wins over an effort, an effort over the default."""
    if thinking_type is not None:
        thinking = thinking_type != "disabled"
    elif effort is not None:
        thinking = effort != "none"
    else:
        thinking = options.default_thinking_mode
    return thinking, (_EFFORTS.get(effort or "high", "high") if thinking else None)


def temperature(value: float | None, thinking: bool, options: ConversionOptions) -> float:
    """Thinking was trained at 1.0, so the official codec overrules a caller; with `extensions` we do not."""
    if value is not None and not 0 <= value <= 2:
        raise ConversionError("Invalid temperature value, the valid range of temperature is [0, 2]")
    if value is None or (thinking and not options.extensions):
        return 1.0
    return single(value)


def top_p(
    value: float | None, thinking: bool, version: ModelVersion, has_tools: bool, options: ConversionOptions
) -> float:
    """V4 thinking is fixed: 0.95 with tools, else 1. V4.1 is not below 0.95 thinking, and 1 otherwise."""
    if value is not None and not 0 < value <= 1:
        raise ConversionError("Invalid top_p value, the valid range of top_p is (0, 1.0]")
    if options.extensions and value is not None:
        return single(value)
    if version == "v4":
        fixed = _TOP_P_FLOOR if has_tools else 1.0
        return single(fixed if thinking else 1.0 if value is None else value)
    return single(max(value, _TOP_P_FLOOR)) if thinking and value is not None else 1.0


def max_tokens(value: int | None, thinking: bool, options: ConversionOptions) -> int | None:
    most = options.max_tokens(thinking)
    if value is not None and not 1 <= value <= most:
        raise ConversionError(f"Invalid max_tokens value, the valid range of max_tokens is [1, {most}]")
    return value


def stop_sequences(value: str | Sequence[str] | None, name: str = "stop") -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        _check_stop(value, name)
        return (value,)
    if len(value) > _MAX_STOPS:
        raise ConversionError(f"Stop string array too long: {len(value)}")
    for index, sequence in enumerate(value):
        _check_stop(sequence, f"{name}[{index}]")
    return tuple(value)


def _check_stop(sequence: str, path: str) -> None:
    if not sequence:
        raise ConversionError(
            f"Invalid '{path}': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        )


def penalty(value: float | None, name: str) -> float:
    if value is not None and not -2 <= value <= 2:
        raise ConversionError(f"Invalid {name} value, the valid range of {name} is [-2, 2]")
    return value or 0.0


def single(value: float) -> float:
    """Rounded to float32, the precision of the sampler and of the official codec."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


_SLICE = 65536


def says_json(text: str) -> bool:
    """Whether the word is in the text, in any case; slice by slice, since one call holds all threads up."""
    return any("json" in text[start : start + _SLICE + 3].lower() for start in range(0, len(text), _SLICE))
