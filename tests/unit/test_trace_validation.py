"""The check of traces finds each kind of broken event, and nothing in whole ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.tracing.encoder import END
from stepahead.engine.tracing.reader import Event
from stepahead.engine.tracing.validation import MOST_UNFINISHED, problems

_END = Event("M", name=END)


def _x(begin: float, length: float, track: int = 1, **fields: object) -> Event:
    return Event("X", pid=1, tid=track, name=f"at {begin:g}", ts=begin, dur=length, **fields)  # type: ignore[arg-type]


def _request(ph: str, name: str, time: float) -> Event:
    return Event(ph, pid=3, name=name, ts=time, cat="request", id="0x1")


@st.composite
def _nested(draw: st.DrawFn, begin: int = 0, length: int = 4096, depth: int = 3) -> list[Event]:
    """Spans that nest: a span, and inside of it others one after another."""
    spans = [_x(begin, length)]
    cuts = sorted(draw(st.sets(st.integers(begin, begin + length), max_size=6)))
    if depth:
        for left, right in zip(cuts[::2], cuts[1::2], strict=False):
            spans += draw(_nested(left, right - left, depth - 1))
    return spans


@given(_nested(), st.randoms())
def test_nested_spans_are_valid_in_any_order_of_the_file(spans: list[Event], random: object) -> None:
    random.shuffle(spans)  # type: ignore[attr-defined]
    assert problems([*spans, _END]) == []


@given(_nested(), st.integers(1, 4095), st.data())
def test_a_span_that_sticks_out_of_another_is_found(
    spans: list[Event], begin: int, data: st.DataObject
) -> None:
    outer = data.draw(st.sampled_from(spans).filter(lambda span: span.dur > 2))
    inside = data.draw(st.floats(outer.ts + 0.1, outer.ts + outer.dur - 0.1))
    sticking = _x(inside, outer.ts + outer.dur - inside + 1.0)
    assert any("overlaps" in problem for problem in problems([*spans, sticking, _END]))


def test_other_tracks_may_overlap() -> None:
    assert problems([_x(0, 10), _x(5, 10, track=2), _END]) == []


def test_negative_times_are_found() -> None:
    assert len(problems([_x(-1, 1), _END])) == 1
    assert len(problems([_x(1, -1), _END])) == 1


def test_asynchronous_intervals_must_balance_and_nest() -> None:
    begin, inner = _request("b", "request 1", 0), _request("b", "queued", 0)
    assert problems([begin, inner, _request("e", "queued", 1), _request("e", "request 1", 2), _END]) == []
    assert "never end" in problems([begin, inner, _request("e", "queued", 1), _END])[0]
    assert "while" in problems([begin, inner, _request("e", "request 1", 1), _END])[0]
    assert "outside" in problems([_request("n", "streamed", 1), _END])[0]


def test_what_a_crash_left_open_is_forgiven_only_without_an_end() -> None:
    left_open = [_request("b", "request 1", 0), _x(0, 1, bind_id="0x1", flow_out=True)]
    assert problems(left_open) == []
    assert problems([*left_open, _END]) != []


def test_arrows_come_from_somewhere_and_start_and_end_once() -> None:
    start = _x(0, 1, bind_id="0x1", flow_out=True)
    through = _x(2, 1, bind_id="0x1", flow_in=True, flow_out=True)
    end = _x(4, 1, bind_id="0x1", flow_in=True)
    assert problems([start, through, end, _END]) == []
    assert "from nowhere" in problems([through, end, _END])[0]
    assert "starts 2 times" in problems([start, _x(1, 1, bind_id="0x1", flow_out=True), end, _END])[0]
    assert "ends 2 times" in problems([start, end, _x(6, 1, bind_id="0x1", flow_in=True), _END])[0]


def test_more_arrows_than_steps_under_way_must_not_end_nowhere() -> None:
    arrows = [_x(10 * n, 1, bind_id=hex(n), flow_out=True) for n in range(1, MOST_UNFINISHED + 2)]
    assert problems([*arrows[:MOST_UNFINISHED], _END]) == []
    assert "end nowhere" in problems([*arrows, _END])[0]
