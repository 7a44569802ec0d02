"""Stop strings across deltas: earliest end, shortest of equals, nothing behind the stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.text.stop_matcher import StopMatcher


def run(text: str, stops: list[str], *, step: int = 1, include_stop: bool = False) -> tuple[str, str | None]:
    """What a reader sees of `text` in pieces of `step` characters, and the stop string that matched."""
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = "".join(matcher.push(text[i : i + step]) for i in range(0, len(text), step))
    return shown + matcher.finish(), matcher.matched


def by_definition(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The rule itself: try every end from the left, and at each end the stop strings from the shortest."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len):
            if text[:end].endswith(stop):
                return (text[:end] if include_stop else text[: end - len(stop)]), stop
    return text, None


TEXT = "one, two, three, four, five, six"


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        (TEXT, ["five, s"], "one, two, three, four, ", "five, s"),
        ("aaab", ["ab", "aab"], "aa", "ab"),
        ("aaab", ["aab", "ab"], "aa", "ab"),
        (TEXT, ["five!!"], TEXT, None),
        ("a👩b", ["👩"], "a", "👩"),
        ("hello world", ["wor"], "hello ", "wor"),
        (TEXT, [], TEXT, None),
        ("", ["x"], "", None),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_b4_stop_strings(text: str, stops: list[str], shown: str, matched: str | None, step: int) -> None:
    assert run(text, stops, step=step) == (shown, matched)
    included = shown + (matched or "")
    assert run(text, stops, step=step, include_stop=True) == (included, matched)


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.integers(1, 7),
    st.booleans(),
)
def test_b4_any_split_gives_the_result_of_the_definition(
    text: str, stops: list[str], step: int, include_stop: bool
) -> None:
    shown = run(text, stops, step=step, include_stop=include_stop)
    assert shown == by_definition(text, stops, include_stop)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_b4_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for i, character in enumerate(text, 1):
        shown += matcher.push(character)
        if matcher.matched is not None:
            break
        held = text[len(shown) : i]
        starts = [stop[:n] for stop in stops for n in range(len(stop))]
        longest = max(len(start) for start in starts if text[:i].endswith(start))
        assert len(held) == longest


def test_nothing_follows_the_stop_string() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("more") == ""
    assert matcher.finish() == ""
    assert matcher.matched == "x"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="at least one character"):
        StopMatcher(["x", ""])


def test_a_long_repetitive_stop_string_costs_a_constant_per_character() -> None:
    """Counted in automaton steps and fallbacks, for the text that makes naive searching quadratic."""
    stop = "a" * 3000 + "b"
    matcher = StopMatcher([stop, "a" * 2999 + "c"])
    automaton = matcher._automaton
    looked_up = 0

    class Counted(list[dict[str, int]]):
        def __getitem__(self, index: int) -> dict[str, int]:  # type: ignore[override]
            nonlocal looked_up
            looked_up += 1
            return super().__getitem__(index)

    automaton.next = Counted(automaton.next)
    text = "a" * 2000 + ("a" * 2500 + "x") * 3
    shown = "".join(matcher.push(character) for character in text) + matcher.finish()
    assert shown == text
    assert looked_up < 5 * len(text)
