"""Drawings of traces, and the command that makes them."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from stepahead.engine.__main__ import main
from stepahead.engine.tracing.gaps import COMMIT_LATE, STARVATION
from stepahead.engine.tracing.labels import placed_labels
from stepahead.engine.tracing.picture import (
    EmptyWindowError,
    Picture,
    draw_window,
    marked,
    step_window,
    typical_window,
)
from stepahead.engine.tracing.png import MissingMatplotlibError, save_png
from stepahead.engine.tracing.svg import html, nice_step

from .trace_builder import Delays, ScriptedEngine, traced, write_trace

BAD = 9


def _picture(path: Path, *, overlap: bool = True, **delay: int) -> Picture:
    engine = ScriptedEngine(overlap=overlap, delays={BAD: Delays(**delay)})
    trace = traced(path / "t.json", engine.run(20), overlap=overlap)
    return draw_window(trace, *step_window(trace, BAD - 1, BAD + 2))


def test_actors_are_above_and_the_device_below(tmp_path: Path) -> None:
    picture = _picture(tmp_path)
    assert picture.rows == ["scheduler", "sampler", "device worker", "output", "device: compute"]
    assert picture.host_rows == 4
    assert "overlap on: the device is busy 100.0%" in picture.title
    assert {bar.step for bar in picture.bars if bar.row == 4} >= {BAD - 1, BAD, BAD + 1, BAD + 2}
    assert all(picture.begin <= bar.begin <= bar.end <= picture.end for bar in picture.bars)


def test_gaps_are_shaded_and_say_why(tmp_path: Path) -> None:
    late = _picture(tmp_path, commit=2000)
    assert next(shade.cause for shade in late.shades) == COMMIT_LATE
    starved = _picture(tmp_path, arrival=20_000)
    assert STARVATION in [shade.cause for shade in starved.shades]
    assert len(_picture(tmp_path, overlap=False).shades) >= 3


def test_a_step_has_one_colour_in_all_rows_and_its_neighbours_others(tmp_path: Path) -> None:
    colours: dict[int, set[str]] = {}
    for bar in _picture(tmp_path).bars:
        colours.setdefault(bar.step, set()).add(bar.colour)
    assert all(len(found) == 1 for found in colours.values())
    assert colours[BAD] != colours[BAD + 1]


def test_labels_do_not_overlap(tmp_path: Path) -> None:
    picture = _picture(tmp_path, overlap=False, plan=800)
    width, character = 1000.0, 6.0
    unit = (picture.end - picture.begin) / width
    placed = list(placed_labels(picture, width, character))
    assert len(placed) > 8
    for row in range(len(picture.rows)):
        edges = [
            edge
            for bar, left, _ in placed
            if bar.row == row
            for edge in (left, left + len(bar.label) * character * unit)
        ]
        assert edges == sorted(edges)


def test_the_typical_window_avoids_the_extremes(tmp_path: Path) -> None:
    delays = {3: Delays(forward=9000), **{step: Delays(forward=100) for step in range(10, 16)}}
    trace = traced(tmp_path / "t.json", ScriptedEngine(delays=delays).run(40))
    begin, end = typical_window(trace, steps=4)
    assert 3_900 < end - begin < 4_400


def test_a_page_is_well_formed_and_tells_times(tmp_path: Path) -> None:
    page = html(_picture(tmp_path, commit=2000))
    drawing = page[page.index("<svg") : page.index("</svg>") + 6]
    root = ElementTree.fromstring(drawing)
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(text.startswith("commit 9: 2,000.0 us at ") for text in titles)
    assert any(text.startswith("device idle") and text.endswith(COMMIT_LATE) for text in titles)


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    picture = draw_window(traced(tmp_path / "t.json", ScriptedEngine().run(9)), 0, 5000, title="a <b> & c")
    assert "a &lt;b&gt; &amp; c" in html(picture)


@pytest.mark.parametrize(("length", "step"), [(1000.0, 200.0), (801.0, 200.0), (799.0, 100.0), (3.0, 0.5)])
def test_ticks_are_round(length: float, step: float) -> None:
    assert nice_step(length, 8) == step


def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_png(_picture(tmp_path), tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingMatplotlibError, match=r"stepahead\[bench\]"):
        save_png(_picture(tmp_path), tmp_path / "t.png")


def test_an_empty_window_says_where_the_trace_is(tmp_path: Path) -> None:
    trace = traced(tmp_path / "t.json", ScriptedEngine().run(9))
    with pytest.raises(EmptyWindowError, match="the trace ends at 9"):
        draw_window(trace, 50_000, 60_000)
    with pytest.raises(EmptyWindowError):
        step_window(trace, 100, 101)


# The command.


def test_the_summary_names_what_a_person_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(
        tmp_path / "run.json", ScriptedEngine(delays={BAD: Delays(commit=2000)}).run(20), overlap=True
    )
    assert main(["trace", str(path)]) == 0
    told = capsys.readouterr().out
    assert "run.json: overlap on, 20 steps" in told
    for words in (
        "Why the device waited",
        "Host time by actor",
        "Critical path",
        "Event loop lag",
        "Worst steps",
    ):
        assert words in told
    assert "commit late, 1," in told


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "run.json", ScriptedEngine().run(20), overlap=True)
    assert main(["trace", str(path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 20
    assert summary["device_busy"] == pytest.approx(1.0)
    assert len(summary["worst_steps"]) == 10


def test_two_traces_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on = write_trace(tmp_path / "on.json", ScriptedEngine().run(20), overlap=True)
    off = write_trace(tmp_path / "off.json", ScriptedEngine(overlap=False).run(20), overlap=False)
    assert main(["trace", "--compare", str(on), str(off)]) == 0
    told = capsys.readouterr().out
    (step,) = [line.split() for line in told.splitlines() if line.strip().startswith("step, us, p50")]
    assert step[-3:] == ["1,000.0", "1,078.0", "1.08x"]
    assert main(["trace", "--json", "--compare", str(on), str(off)]) == 0
    assert [entry["overlap"] for entry in json.loads(capsys.readouterr().out).values()] == [True, False]


def test_drawing_by_steps_and_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = write_trace(tmp_path / "run.json", ScriptedEngine().run(20)), tmp_path / "run.html"
    for window in ([], ["--steps", "3:5", "--mark", "forward 4=9"], ["--window", "2:4.5"]):
        assert main(["trace", str(path), "--html", str(page), *window]) == 0
        assert "<svg" in page.read_text()
    assert main(["trace", str(path), "--html", str(page), "--steps", "three"]) == 1
    assert "is not a range" in capsys.readouterr().err
    assert main(["trace", str(path), "--html", str(page), "--steps", "3:5", "--mark", "plan 99=1"]) == 1
    assert "no span 'plan 99'" in capsys.readouterr().err


def test_marks_are_drawn_on_their_spans(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plain = _picture(tmp_path)
    picture = marked(plain, {f"sampler: commit {BAD}": "1", f"forward {BAD}": "2"})
    assert [mark.sign for mark in picture.marks] == ["1", "2"]
    assert [picture.rows[mark.row] for mark in picture.marks] == ["sampler", "device: compute"]
    assert html(picture).count("<circle") == 2
    save_png(plain, tmp_path / "plain.png")
    save_png(picture, tmp_path / "marked.png")
    assert (tmp_path / "plain.png").read_bytes() != (tmp_path / "marked.png").read_bytes()


def test_a_broken_trace_is_found_and_a_whole_one_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_trace(tmp_path / "run.json", ScriptedEngine().run(5))
    assert main(["trace", str(path), "--check"]) == 0
    assert "arrows resolve" in capsys.readouterr().out
    path.write_bytes(re.sub(rb'("name":"plan","ts":[0-9.]+,"dur":)[0-9.]+', rb"\g<1>2900", path.read_bytes()))
    assert main(["trace", str(path), "--check"]) == 1
    assert "overlaps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace"], "give one trace"),
        (["trace", "nowhere.json"], "nowhere.json: No such file"),
        (["trace", "{other}"], "is not a Stepahead trace"),
        (["trace", "{empty}"], "no step that ran on the device"),
        (["trace", "{empty}", "--torch", "{other}"], "needs --out"),
        (["trace", "{empty}", "--torch", "{other}", "--out", "x"], "no wall time"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "other.json").write_text("[]")
    empty = write_trace(tmp_path / "empty.json", [])
    filled = [text.format(other=tmp_path / "other.json", empty=empty) for text in arguments]
    assert main(filled) == 1
    assert said in capsys.readouterr().err


def test_a_torch_profile_is_moved_onto_the_traces_clock(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    trace = write_trace(tmp_path / "run.json", ScriptedEngine().run(5), wall_ns_at_zero=start + 5_000_000)
    profile = {
        "baseTimeNanoseconds": start,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
            {"ph": "X", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 5_250.5, "dur": 10.0},
        ],
    }
    (tmp_path / "torch.json").write_text(json.dumps(profile))
    out = tmp_path / "both.json"
    assert main(["trace", str(trace), "--torch", str(tmp_path / "torch.json"), "--out", str(out)]) == 0
    merged = json.loads(out.read_bytes())
    (product,) = [event for event in merged if event["name"] == "aten::mm"]
    assert (product["pid"], product["ts"]) == (1007, 250.5)
    assert {"name": "torch: python"} in [event.get("args") for event in merged]
    assert merged[-1]["name"] == "stepahead trace end"
    assert main(["trace", str(out), "--check"]) == 0
