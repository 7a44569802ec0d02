"""Records to files and back: what is written is valid, bounded, and readable wherever it is cut."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.tracing.encoder import Encoder
from stepahead.engine.tracing.reader import NotATraceError, Trace, events, read_trace
from stepahead.engine.tracing.recorder import Record
from stepahead.engine.tracing.trace_file import MAX_BYTES, TraceFile
from stepahead.engine.tracing.validation import problems
from stepahead.engine.tracing.vocabulary import (
    ADMITTED,
    COUNTED,
    DELIVERED,
    DEVICE_WORK,
    ENDED,
    NOTE,
    OPENED,
    SPAN_NAMES,
    STEPPED,
)

from .trace_builder import ScriptedEngine, traced, write_trace


def _layout(keys: list[int], decodes: int, samples: bool = True) -> BatchLayout:
    count = len(keys)
    return BatchLayout(
        slots=np.arange(1, count + 1, dtype=np.int32),
        sequence_keys=np.array(keys, dtype=np.int64),
        admissions=np.array(keys, dtype=np.int64),
        query_lengths=np.full(count, 4, dtype=np.int32),
        row_starts=np.arange(0, 4 * count, 4, dtype=np.int32),
        reach=np.full(count, 4, dtype=np.int32),
        samples=np.full(count, samples, dtype=np.bool_),
        decode_count=decodes,
        rows=4 * count,
    )


def _counts(*counts: int) -> np.ndarray:
    return np.array(counts, dtype=np.int32)


def _parsed(path: Path) -> list[dict[str, object]]:
    events: list[dict[str, object]] = json.loads(path.read_bytes())
    return events


def test_a_file_is_plain_json_with_named_tracks_and_readable_times(tmp_path: Path) -> None:
    records: list[Record] = [
        ("scheduler.plan", 1_000, 3_500, 7, 12),
        (DEVICE_WORK, 4_000, 9_000, "compute", "forward:7"),
        (NOTE, 5_000, 'a "quoted" note'),
    ]
    written = _parsed(write_trace(tmp_path / "t.json", records, overlap=True))
    plan = next(event for event in written if event["name"] == "plan")
    assert (plan["ph"], plan["ts"], plan["dur"]) == ("X", 1.0, 2.5)
    assert plan["args"] == {"step": 7, "size": 12}
    threads = {event["args"]["name"] for event in written if event["name"] == "thread_name"}  # type: ignore[index]
    assert {"scheduler", "device worker", "compute"} <= threads
    assert written[-1]["args"] == {"records": 3, "truncated": False, "lost some": False}
    assert any(event["name"] == 'a "quoted" note' for event in written)


def test_a_steps_arrow_runs_from_its_plan_through_the_device_to_its_deltas(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", ScriptedEngine().run(4))
    arrow = sorted((e for e in events(path) if e.bind_id == "0x3"), key=lambda event: event.ts)
    assert [event.name for event in arrow] == [
        "plan",
        "launch forward",
        "forward",
        "launch sample",
        "sample",
        "collect",
        "commit",
        "detokenize",
    ]
    assert not arrow[0].flow_in
    assert not arrow[-1].flow_out


def test_a_step_planned_before_the_file_has_no_arrow(tmp_path: Path) -> None:
    records = [r for r in ScriptedEngine().run(3) if r[:1] != ("scheduler.plan",) or r[3] != 0]
    path = write_trace(tmp_path / "t.json", records)
    assert all(event.bind_id != "0x1" for event in events(path))
    assert problems(events(path)) == []


def test_records_of_before_the_origin_are_left_out(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json", Encoder(10_000), {})
    file.write([("scheduler.plan", 9_999, 12_000, 0, 0), ("scheduler.plan", 10_000, 12_000, 1, 0)])
    file.close(12_000)
    assert [span.step for span in read_trace(file.path).host["scheduler"]] == [1]


def test_a_request_is_queued_prefilled_decoded_streamed_and_ended(tmp_path: Path) -> None:
    chunk, last, decode = _layout([5], 0, samples=False), _layout([5], 0), _layout([5], 1)
    records: list[Record] = [
        (OPENED, 0, 5, "mine", 30, False),
        (ADMITTED, 1_000, 5, 16, False),
        (STEPPED, 2_000, 0, chunk, _counts(0)),
        (STEPPED, 3_000, 1, last, _counts(1)),
        (DELIVERED, 3_500, 5, 1),
        (STEPPED, 4_000, 2, decode, _counts(3)),
        (ENDED, 4_000, 5, "stop", 4),
    ]
    path = write_trace(tmp_path / "t.json", records)
    story = [(e.ph, e.name, e.ts) for e in events(path) if e.cat == "request"]
    assert story == [
        ("b", "request 5: mine", 0.0),
        ("b", "queued", 0.0),
        ("e", "queued", 1.0),
        ("b", "prefill", 1.0),
        ("e", "prefill", 2.0),
        ("b", "prefill", 2.0),
        ("e", "prefill", 3.0),
        ("n", "streamed", 3.5),
        ("b", "decode", 3.0),
        ("e", "decode", 4.0),
        ("n", "ended: stop", 4.0),
        ("e", "request 5: mine", 4.0),
    ]
    assert problems(events(path)) == []
    assert read_trace(path).requests == 1


def test_requests_beyond_the_detail_are_told_by_phase(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json", Encoder(0, detail=1), {})
    file.write([(OPENED, 0, key, None, 8, False) for key in (1, 2)])
    file.write([(ADMITTED, 1_000, key, 0, False) for key in (1, 2)])
    file.write([(STEPPED, 2_000, 0, _layout([1, 2], 0), _counts(1, 1))])
    decode = _layout([1, 2], 2)
    file.write([(STEPPED, 1_000 * (3 + step), 1 + step, decode, _counts(1, 1)) for step in range(5)])
    file.write([(ENDED, 9_000, key, "length", 6) for key in (1, 2)])
    file.close(9_000)
    begun = [(e.id, e.name) for e in events(file.path) if e.ph == "b"]
    assert begun.count(("0x1", "decode")) == 5 + 1  # five steps, and the rest until the end
    assert [name for key, name in begun if key == "0x2"] == ["request 2", "queued", "prefill", "decode"]
    assert problems(events(file.path)) == []


def test_detail_ends_where_it_has_taken_its_share_of_the_file(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json", Encoder(0, detail_bytes=4_000), {})
    file.write([(OPENED, 0, key, None, 8, key == 1) for key in (1, 2)])
    decode = _layout([1, 2], 2)
    for step in range(1000):
        file.write([(STEPPED, 1_000 * step, step, decode, _counts(1, 1))])
    file.write([(OPENED, 10**6, 3, None, 8, True), (ENDED, 10**6, 1, "stop", 6)])
    file.close(2 * 10**6)
    assert file.path.stat().st_size < 4_000 + 4_000
    assert problems(events(file.path)) == []
    assert len([event for event in events(file.path) if event.name == "decode"]) > 20


def test_a_file_of_one_request_shows_no_other(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json", Encoder(0, only=frozenset({2})), {})
    file.write([(OPENED, 0, key, None, 8, False) for key in (1, 2)])
    file.write([(STEPPED, 2_000, 0, _layout([1, 2, 3], 3), _counts(1, 1, 1))])
    file.close(3_000)
    assert {e.id for e in events(file.path) if e.cat == "request"} == {"0x2"}


def test_requests_that_began_before_or_end_after_the_file_still_balance(tmp_path: Path) -> None:
    records: list[Record] = [
        (STEPPED, 1_000, 9, _layout([3, 4], 2), _counts(1, 1)),
        (ENDED, 2_000, 3, "abort", 1),
        (STEPPED, 3_000, 10, _layout([3, 4], 2), _counts(1, 1)),
    ]
    path = write_trace(tmp_path / "t.json", records)
    assert problems(events(path)) == []
    names = [event.name for event in events(path) if event.ph == "n"]
    assert names == ["ended: abort", "ended: still running"]


def test_counters_are_written_when_they_change(tmp_path: Path) -> None:
    values = ((2, 1), (1,), (8, 0), (100,), (0, 0, 0, 0, 0))
    changed = ((3, 1), *values[1:])
    path = write_trace(
        tmp_path / "t.json", [(COUNTED, 0, values), (COUNTED, 1_000, values), (COUNTED, 2_000, changed)]
    )
    counters = read_trace(path).counters
    assert counters["sequences running"] == [(0.0, 2.0), (2.0, 3.0)]
    assert counters["blocks free"] == [(0.0, 100.0)]
    assert counters["mailbox scheduler"] == [(0.0, 0.0)]


@given(cut=st.floats(0.0, 1.0))
def test_a_file_cut_anywhere_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = write_trace(folder / "whole.json", ScriptedEngine().run(6))
    head = whole.read_bytes().index(b'"ts"')
    kept = whole.read_bytes()[: head + int(cut * (whole.stat().st_size - head - 20))]
    (folder / "cut.json").write_bytes(kept)
    trace = read_trace(folder / "cut.json")
    assert not trace.complete
    read, written = list(events(folder / "cut.json")), list(events(whole))
    assert written[: len(read)] == read
    assert len(read) >= kept.count(b"\n") - 1
    assert problems(read) == []


def test_a_compressed_file_is_read_whole_and_cut(tmp_path: Path) -> None:
    records = ScriptedEngine().run(200)
    plain, small = write_trace(tmp_path / "t.json", records), write_trace(tmp_path / "t.json.gz", records)
    assert gzip.decompress(small.read_bytes()) == plain.read_bytes()
    assert small.stat().st_size < plain.stat().st_size / 6
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(small.read_bytes()[: small.stat().st_size // 2])
    assert 50 < len(read_trace(cut).host["scheduler"]) < len(read_trace(small).host["scheduler"])


def test_a_file_stops_growing_at_its_bound_and_says_so(tmp_path: Path) -> None:
    bound = 20_000
    file = TraceFile(tmp_path / "t.json", Encoder(0), {}, max_bytes=bound)
    records = ScriptedEngine().run(500)
    for first in range(0, len(records), 10):
        file.write(records[first : first + 10])
    file.close(10**9)
    assert bound <= file.path.stat().st_size < bound + 3_000
    trace = read_trace(file.path)
    assert trace.end is not None
    assert trace.end["truncated"] is True
    assert problems(events(file.path)) == []


def test_a_full_disk_is_kept_for_whoever_closes(tmp_path: Path) -> None:
    file = TraceFile(Path("/dev/full"), Encoder(0), {})
    file.write(ScriptedEngine().run(2000))
    file.close(0)
    assert isinstance(file.error, OSError)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('[{"ph":"X","name":"x","ts":1,"dur":1}]')
    with pytest.raises(NotATraceError, match="is not a Stepahead trace"):
        read_trace(tmp_path / "other.json")


def test_ten_minutes_at_a_thousand_steps_a_second_stay_under_the_bound(tmp_path: Path) -> None:
    """A file grows by the step, so its size is a slope: measured between 100 and 300 steps, with counters."""
    sizes = []
    for steps in (100, 300):
        records = ScriptedEngine().run(steps)
        for step in range(steps):
            records.append((COUNTED, step * 10**6, ((step, 0), (step % 2,), (step, step), (step,), (0,) * 5)))
        sizes.append(write_trace(tmp_path / "t.json", records).stat().st_size)
    per_step = (sizes[1] - sizes[0]) / 200
    assert per_step * 600_000 < MAX_BYTES


_span = st.builds(
    lambda name, begin, length, step: (name, begin, begin + length, step, 0),
    st.sampled_from(SPAN_NAMES),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.integers(-1, 50),
)


@given(st.lists(_span, max_size=40))
def test_every_span_comes_back_as_it_was_recorded(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    trace: Trace = traced(tmp_path_factory.mktemp("t") / "t.json", records)
    read = [
        (
            f"{track}.{span.name.replace(' ', '_')}",
            round(span.begin * 1000),
            round(span.end * 1000),
            span.step,
        )
        for track, spans in trace.host.items()
        for span in spans
    ]
    assert sorted(read) == sorted(record[:4] for record in records)


def test_decoding_uses_exactly_the_written_fields(tmp_path: Path) -> None:
    """A field that the writer writes and the reader does not know would be lost in silence."""
    path = write_trace(tmp_path / "t.json", ScriptedEngine().run(3))
    known = {field.name for field in msgspec.structs.fields(type(next(iter(events(path)))))}
    assert {key for event in _parsed(path) for key in event} <= known


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_is_a_trace_from_the_moment_it_is_there(tmp_path: Path, name: str) -> None:
    file = TraceFile(tmp_path / name, Encoder(0, detail=1), {"device": "none"})
    assert not read_trace(tmp_path / name).complete
    file.close(1)
    assert read_trace(tmp_path / name).complete
