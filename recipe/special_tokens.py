"""The special tokens of the prompt format, by role, with their spellings.

A spelling is not an identity: checkpoints re-spell some (V4.1's image token is `<｜deepseek_image｜>`), and a
user can type any of them. So code names a token by its field here, and only what the renderer itself writes
becomes a token id (recipe_spec 2.1).
"""

from __future__ import annotations

import re
from functools import cached_property

import msgspec


class SpecialTokens(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One spelling per role. `dsml` has no angle brackets: those around it are ordinary text."""

    bos: str = "<｜begin▁of▁sentence｜>"
    eos: str = "<｜end▁of▁sentence｜>"
    thinking_start: str = "<think>"
    thinking_end: str = "</think>"
    system: str = "<｜System｜>"
    user: str = "<｜User｜>"
    assistant: str = "<｜Assistant｜>"
    latest_reminder: str = "<｜latest_reminder｜>"
    dsml: str = "｜DSML｜"
    image: str = "<｜image｜>"
    ref: str = "<｜ref｜>"
    ref_end: str = "<｜/ref｜>"
    box: str = "<｜box｜>"
    box_end: str = "<｜/box｜>"
    point: str = "<｜point｜>"
    point_end: str = "<｜/point｜>"
    polygon: str = "<｜polygon｜>"
    polygon_end: str = "<｜/polygon｜>"

    @cached_property
    def grounding(self) -> re.Pattern[str]:
        """Matches the eight tokens a model may write into its own text to point at parts of an image."""
        spellings = (
            self.ref, self.ref_end, self.box, self.box_end,
            self.point, self.point_end, self.polygon, self.polygon_end,
        )  # fmt: skip
        return re.compile("|".join(re.escape(spelling) for spelling in spellings))


DEFAULT_SPECIAL_TOKENS = SpecialTokens()
