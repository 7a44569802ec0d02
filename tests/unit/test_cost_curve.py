"""What a step costs: between and beyond measured sizes, and what running steps correct."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.scheduling.cost_curve import RECENT, CostCurve, CostModel, Step

LINE = CostCurve(rows=(1, 101), seconds=(1.0, 2.0), sequences=(1, 10), draft_seconds=(0.1, 0.19))


def test_between_sizes_costs_lie_between_and_beyond_them_they_go_on() -> None:
    table = LINE.table(201)
    assert table[[1, 51, 101, 201]] == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert [LINE.draft(n) for n in (1, 5, 10, 20)] == pytest.approx([0.1, 0.14, 0.19, 0.29])


def test_a_padded_step_costs_what_the_next_size_does() -> None:
    curve = CostCurve(rows=(2, 4, 8), seconds=(1.0, 1.1, 1.3), padded=True)
    assert curve.table(10) == pytest.approx(np.array([1, 1, 1, 1.1, 1.1, 1.3, 1.3, 1.3, 1.3, 1.35, 1.4]))


def test_more_rows_never_cost_less() -> None:
    curve = CostCurve(rows=(1, 2, 4), seconds=(1.0, 0.7, 1.2))
    assert (np.diff(curve.table(9)) >= 0).all()


def test_one_size_alone_is_taken_to_cost_per_row() -> None:
    assert CostCurve(rows=(4,), seconds=(1.0,)).table(8)[8] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": (), "seconds": ()},
        {"rows": (1, 1), "seconds": (1.0, 2.0)},
        {"rows": (1, 2), "seconds": (1.0,)},
        {"rows": (0,), "seconds": (1.0,)},
        {"rows": (1,), "seconds": (0.0,)},
        {"rows": (1,), "seconds": (float("nan"),)},
        {"rows": (1,), "seconds": (1.0,), "sequences": (1,)},
    ],
)
def test_what_is_no_curve_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(**wrong)  # type: ignore[arg-type]


def observe(model: CostModel, steps: list[tuple[int, float, bool]], sequences: int = 10) -> None:
    """Steps of (rows, seconds, whether it drafted), one after the other."""
    for rows, seconds, drafting in steps:
        model.observe(Step(rows, sequences, drafting, seconds))


def test_a_machine_that_is_busy_changes_no_ratio() -> None:
    """Whatever was seen when: sizes seen under load are not dearer than those seen in a quiet minute."""
    model = CostModel(LINE, 200)
    for load, rows in ((1.0, 60), (3.0, 10), (1.0, 60), (2.0, 30)):
        observe(model, [(rows, load * (1.0 + 0.01 * (rows - 1)), False)] * 2 * RECENT)
        assert model.load == pytest.approx(load)
        model.interrupt()
    assert model.step(60, 10, drafting=False) == pytest.approx(1.59)
    assert model.step(60, 10, drafting=True) == pytest.approx(1.59 + 0.19)


def test_steps_one_after_the_other_show_what_rows_take() -> None:
    """A longer context: half as much again per row, while the load changes; and a page fault."""
    model = CostModel(LINE, 200)
    for number in range(12):
        load = 1.0 + 0.3 * (number % 3)
        pair = [(10, load * (1.09 + 0.05), False), (60, load * (1.59 + 0.3), False)]
        observe(model, pair if number != 5 else [(10, 50.0, False), pair[1]])
        model.interrupt()
    assert model.slope == pytest.approx(0.005)
    times = model.seconds(10, 50, 10, drafting=False)
    assert times[50] / times[0] == pytest.approx(1.89 / 1.14)
    assert model.seconds(10, 50, 10, drafting=False) is times, "the same until something is learned"


def test_rows_far_apart_only() -> None:
    model = CostModel(LINE, 200)
    observe(model, [(40, 1.0, False), (50, 9.0, False)] * 20)
    assert model.slope == 0.0
    assert not model.knows_rows


def test_what_is_not_sure_stays_as_measured() -> None:
    """One pair alone, or pairs that contradict each other."""
    model = CostModel(LINE, 200)
    observe(model, [(10, 1.09, False), (60, 5.0, False)])
    assert model.slope == 0.0
    for seconds in (1.0, 2.5, 0.9, 2.4):
        model.interrupt()
        observe(model, [(10, 1.09, False), (60, seconds, False)])
    assert model.slope == 0.0
    assert not model.knows_rows


def test_rows_never_seem_free_where_they_were_measured_as_dear() -> None:
    model = CostModel(LINE, 200)
    observe(model, [(10, 1.0, False), (60, 1.0, False)] * 20)
    assert model.slope == pytest.approx(-0.75 * 0.01, rel=0.01)
    times = model.seconds(1, 150, 1, drafting=False)
    assert (np.diff(times) >= 0).all()
    assert times[-1] > times[0] + 0.3


def test_drafting_is_what_steps_with_drafts_take_more() -> None:
    model = CostModel(LINE, 200)
    assert model.step(10, 10, drafting=True) == pytest.approx(1.09 + 0.19)
    observe(model, [(10, 2 * 1.09, False), (10, 2 * (1.09 + 0.5), True)] * 3)
    assert model.load == pytest.approx(2.0)
    assert model.knows_drafts(10)
    assert not model.knows_drafts(5)
    assert model.step(10, 10, drafting=True) == pytest.approx(1.59)
    assert model.step(40, 10, drafting=True) == pytest.approx(1.89)
    assert model.step(10, 5, drafting=True) == pytest.approx(1.09 + LINE.draft(5)), "elsewhere as measured"


@pytest.mark.parametrize("between", ["another batch", "something else", "both differ"])
def test_only_steps_that_differ_in_one_thing_are_compared(between: str) -> None:
    model = CostModel(LINE, 200)
    for _ in range(10):
        observe(model, [(10, 1.0, False)])
        if between == "something else":
            model.interrupt()
        observe(model, [(60, 9.0, between == "both differ")], 11 if between == "another batch" else 10)
        model.interrupt()
    assert model.slope == 0.0
    assert model.step(10, 10, drafting=True) == pytest.approx(1.09 + 0.19)


def test_steps_beyond_the_table_teach_nothing_and_cost_what_its_end_does() -> None:
    model = CostModel(LINE, 100)
    observe(model, [(10, 1.09, False), (10**9, 99.0, False), (10, 1.09, False)])
    assert model.load == pytest.approx(1.0)
    assert model.step(10**9, 1, drafting=False) == model.step(100, 1, drafting=False)
    assert model.seconds(98, 5, 1, drafting=False).shape == (6,)
    assert model.seconds(200, 5, 1, drafting=False).shape == (6,)
