"""What a step costs: between and beyond measured sizes, and what running steps correct."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.scheduling.cost_curve import ENOUGH, MOST_KINDS, STEPS_BETWEEN, CostCurve, CostModel

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


def observe(model: CostModel, rows: int, sequences: int, seconds: float, times: int, *, drafts: bool) -> None:
    for _ in range(times):
        model.observe(rows, sequences, seconds, drafting=drafts)


def test_steps_correct_what_a_row_and_what_a_step_cost() -> None:
    """A longer context: half as much again per row, and something per step that the curve never saw."""
    model = CostModel(LINE, 200)

    def truth(rows: int) -> float:
        return 1.0 + 0.01 * (rows - 1) + 0.005 * rows + 0.3

    for rows in (10, 20, 40, 60):
        observe(model, rows, 10, truth(rows) + 0.19, 8, drafts=True)
        model.observe(rows, 10, 50.0, drafting=True)  # a page fault
    observe(model, 10, 10, truth(10), 9, drafts=False)
    assert model.scale * 0.01 + model.slope == pytest.approx(0.015)
    learned = [model.step(rows, 10, drafting=False) for rows in (10, 35, 60)]
    assert learned == pytest.approx([truth(rows) for rows in (10, 35, 60)])
    assert model.step(30, 10, drafting=True) == pytest.approx(truth(30) + 0.19)
    assert model.step(30, 7, drafting=False) == pytest.approx(truth(30)), "another number of sequences"
    several = model.seconds(10, 3, 10, drafting=False)
    assert several.tolist() == pytest.approx([truth(rows) for rows in (10, 11, 12, 13)])


def test_few_steps_correct_nothing() -> None:
    model = CostModel(LINE, 200)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        observe(model, rows, 1, 99.0, ENOUGH - 1, drafts=False)
    model.correct()
    assert model.step(51, 1, drafting=False) == pytest.approx(1.5)


def test_a_machine_that_slows_down_is_slower_for_every_row() -> None:
    """Only plain steps are seen: what they take too long, drafts would take too long as well."""
    model = CostModel(LINE, 200)
    observe(model, 10, 10, 2 * 1.09, STEPS_BETWEEN, drafts=False)
    assert model.step(60, 10, drafting=False) == pytest.approx(2 * 1.59)
    assert model.step(60, 10, drafting=True) == pytest.approx(2 * (1.59 + 0.19))


def test_totals_that_differ_by_a_few_rows_are_one_kind() -> None:
    """Adaptive totals seldom come twice, and must teach all the same."""
    model = CostModel(LINE, 200)
    for rows in range(97, 97 + STEPS_BETWEEN // 4):
        model.observe(rows, 20, 3 * (1.0 + 0.01 * (rows - 1)), drafting=False)
    assert model.step(100, 20, drafting=False) == pytest.approx(3 * 1.99, rel=0.02)


def test_a_curve_from_a_busy_machine_shrinks_as_a_whole() -> None:
    model = CostModel(LINE, 200)
    for rows in (10, 50):
        observe(model, rows, 5, (1.0 + 0.01 * (rows - 1)) / 4, STEPS_BETWEEN, drafts=False)
    assert model.scale == pytest.approx(0.25)
    assert model.step(101, 5, drafting=False) == pytest.approx(0.5)
    assert model.step(101, 10, drafting=True) == pytest.approx(0.5 + 0.19 / 4)


def test_drafting_is_what_steps_with_drafts_take_more() -> None:
    """Few such steps, each of another size, are enough: a rest has only its probes."""
    model = CostModel(LINE, 200)
    for rows in (10, 12, 30, 44, 58):
        model.observe(rows, 10, 1.0 + 0.01 * (rows - 1) + 0.5, drafting=True)
    observe(model, 10, 10, 1.09, STEPS_BETWEEN, drafts=False)
    assert model.step(40, 10, drafting=False) == pytest.approx(1.39)
    assert model.step(40, 10, drafting=True) == pytest.approx(1.89)
    assert model.step(10, 5, drafting=True) == pytest.approx(1.09 + LINE.draft(5)), "elsewhere as measured"


def test_kinds_of_steps_are_bounded_and_large_ones_ignored() -> None:
    model = CostModel(LINE, 4000)
    for sequences in range(1, 3 * MOST_KINDS):
        model.observe(1000, sequences, 1.0, drafting=False)
    assert len(model._seen) == MOST_KINDS
    model.observe(10**9, 1, 1.0, drafting=False)
    assert model.step(10**9, 1, drafting=False) > 0


def test_a_budget_beyond_the_table_costs_what_its_end_does() -> None:
    model = CostModel(LINE, 100)
    assert model.seconds(98, 5, 1, drafting=False).shape == (6,)
