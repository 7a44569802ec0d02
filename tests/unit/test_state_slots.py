"""A state slot has one holder at a time."""

from __future__ import annotations

import pytest

from stepahead.engine.cache.state_slots import StateSlots


def test_slots_are_taken_lowest_first_until_none_is_left() -> None:
    slots = StateSlots(first=5, count=3)
    assert slots.take(2).tolist() == [5, 6]
    assert slots.take(2).tolist() == [7]
    assert slots.take(1).tolist() == []
    slots.give([6])
    assert (slots.free, slots.take(1).tolist()) == (1, [6])


@pytest.mark.parametrize("slot", [4, 5, 8])
def test_only_taken_slots_can_be_given_back(slot: int) -> None:
    slots = StateSlots(first=5, count=3)
    slots.give(slots.take(3).tolist())
    with pytest.raises(ValueError, match=f"state slot {slot} is returned but was not taken"):
        slots.give([slot])
