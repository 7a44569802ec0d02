"""Rejection sampling gives the target's distribution, whatever drafts were drawn from: chi-square, as ever.

    pytest tests/unit/test_rejection_sampling.py -s      prints every p-value

Windows of two drafts over toy vocabularies, through the chooser that a real runner uses: drafts drawn from
another model's logits under the same rules, then verified.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.engine.model.runner import NO_TOKEN, BatchLayout, RunnerShape, SamplePlan
from stepahead.engine.model.v41 import filtering
from stepahead.engine.model.v41.choosing import ForwardResult
from stepahead.engine.model.v41.processing import DrawRows
from stepahead.engine.model.v41.rejection import RejectionChooser
from stepahead.engine.model.v41.sampling_slots import SamplingSlots
from stepahead.engine.model.v41.slots import allocate_slots
from stepahead.engine.model.v41.step_input import place_layout
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant

from .hashed_driver import int32, request
from .test_distributions import CASES, LEAST_P, PROMPT, VOCAB, Toy, p_value, some_logits

SEQUENCES, ROUNDS, DRAFTS = 2000, 100, 2
WIDTH = DRAFTS + 1
SHAPE = RunnerShape(
    sequence_slots=SEQUENCES, snapshot_slots=0, blocks=2, table_columns=1, max_rows=SEQUENCES * WIDTH,
    max_positions=10_000, draft_tokens=DRAFTS, max_stop_ids=4, max_logprobs=5, rejection=True,
)  # fmt: skip
CPU = torch.device("cpu")
SLOTS = int32(range(1, SEQUENCES + 1))
LAYOUT = BatchLayout(
    slots=SLOTS,
    sequence_keys=np.arange(SEQUENCES),
    admissions=np.arange(SEQUENCES),
    query_lengths=np.full(SEQUENCES, WIDTH, dtype=np.int32),
    row_starts=WIDTH * np.arange(SEQUENCES, dtype=np.int32),
    reach=np.full(SEQUENCES, WIDTH, dtype=np.int32),
    samples=np.ones(SEQUENCES, dtype=np.bool_),
    decode_count=SEQUENCES,
    rows=SEQUENCES * WIDTH,
)


QUALITIES = (0.3, 2.0)
LEAST = LEAST_P / (3 * len(CASES) * len(QUALITIES))
"""Of all p-values together one in a hundred times may be less, if all is right."""


class Windows:
    """One request in every slot, by seed; each round is a window at output positions of its own."""

    def __init__(self, **fields: Any) -> None:
        self.toy = Toy(**fields)
        occupants = []
        for slot in SLOTS.tolist():
            params = msgspec.structs.replace(self.toy.params, seed=slot)
            made = msgspec.structs.replace(request(slot, PROMPT), params=params)
            occupants.append(Occupant(slot=slot, request=made, output=0))
        self.tables = SamplingSlots(SHAPE, VOCAB, CPU)
        self.tables.update(SamplingTable(SHAPE).occupy(occupants), edit_rows(occupants))
        self.state = allocate_slots(SHAPE, torch.float32, CPU)
        config = SimpleNamespace(vocab_size=VOCAB)
        model: Any = SimpleNamespace(config=config, device=CPU, operations=REFERENCE)
        self.chooser = RejectionChooser(model, SHAPE, self.state, self.tables)
        self.placed = place_layout(LAYOUT, CPU)

    def draft(self, logits: list[np.ndarray], first: torch.Tensor) -> None:
        """As `Chooser.draft`, with these logits at each place."""
        slots = self.placed.slots
        guesses = torch.full((SEQUENCES, DRAFTS), NO_TOKEN)
        for place, own in enumerate(logits):
            rows = DrawRows(torch.arange(SEQUENCES), slots, first + 1 + place - len(PROMPT), guesses, SLOTS)
            guesses[:, place] = self.chooser._guess(torch.from_numpy(own).expand(SEQUENCES, -1), rows, place)
        self.state.drafts[slots] = guesses

    def window(self, number: int, target: list[np.ndarray], guess: list[np.ndarray]) -> np.ndarray:
        """Tokens `[sequences, places]` of one round, NO_TOKEN behind a rejection."""
        first = torch.full((SEQUENCES,), len(PROMPT) - 1 + WIDTH * number)
        self.draft(guess, first)
        logits = torch.from_numpy(np.stack(target)).repeat(SEQUENCES, 1)
        nothing = self.placed.slots.new_empty(0, 3)
        plan: Any = SimpleNamespace(masks=None, logprobs=-1)
        drawn = self.chooser.choose(ForwardResult(self.placed, logits, first, nothing), plan)
        assert drawn.finite.all()
        return drawn.tokens.numpy()


def check(name: str, windows: Windows, quality: float) -> float:
    """The least p-value, of the first tokens and of what follows one or two accepted ones."""
    target = [some_logits(5), some_logits(6), some_logits(8)]
    guess = [own + np.float32(quality) * some_logits(20 + i) for i, own in enumerate(target[:DRAFTS])]
    tokens = np.concatenate([windows.window(n, target, guess) for n in range(ROUNDS)])
    toy = windows.toy
    first = toy.probabilities(target[0], [])
    p_first = p_value(np.bincount(tokens[:, 0], minlength=VOCAB), len(tokens) * first)
    further = []
    for place in (1, 2):
        here = tokens[tokens[:, place] >= 0]
        codes = [int(code) for code in here[:, :place] @ (VOCAB ** np.arange(place))]
        counts, expected = [], []
        for code in sorted(set(codes)):
            own = here[np.array(codes) == code]
            said = own[0, :place].tolist()
            chances = len(own) * toy.probabilities(target[place], said)
            found = np.bincount(own[:, place], minlength=VOCAB).astype(np.float64)
            assert not found[chances == 0].any(), "drew what has no probability"
            large = chances >= 10  # rare ones count together
            counts += [*found[large], found[~large].sum()]
            expected += [*chances[large], chances[~large].sum()]
        further.append(p_value(np.array(counts), np.array(expected), totals=len(set(codes))))
    overlap = np.minimum(first, toy.probabilities(guess[0], [])).sum()
    accepted = (tokens[:, 1] >= 0).mean()
    print(f"{name}, quality {quality}: p = {p_first:.3f}, behind accepted {further[0]:.3f} {further[1]:.3f};"
          f" accepted {accepted:.4f} of {overlap:.4f}")  # fmt: skip
    assert abs(accepted - overlap) < 0.005, "a draft is accepted as often as any method can"
    return min(p_first, *further)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("quality", QUALITIES)
def test_windows_follow_the_target(name: str, quality: float) -> None:
    assert check(name, Windows(**CASES[name]), quality) > LEAST


@pytest.mark.parametrize("name", ["all filters", "everything"])
def test_so_they_do_where_nothing_is_read_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "host_may_ask", lambda device: False)
    assert check(f"{name}, by threshold", Windows(**CASES[name]), 0.8) > LEAST


def test_the_test_sees_a_draft_judged_by_another_distribution_than_its_own() -> None:
    """Trap D4: processed drafts, verified as if they were drawn from raw logits."""
    windows = Windows(temperature=0.5)
    verify = windows.chooser._settle

    def wrong(*arguments: Any) -> Any:
        guessed = windows.chooser._guessed
        hotter = guessed.sqrt()
        windows.chooser._guessed = hotter / hotter.sum(-1, keepdim=True)
        settled = verify(*arguments)
        windows.chooser._guessed = guessed
        return settled

    windows.chooser._settle = wrong  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        assert check("judged wrongly", windows, 0.8) > LEAST


def test_places_without_a_draft_draw_the_target() -> None:
    windows, target = Windows(), [some_logits(5), some_logits(6), some_logits(8)]
    tokens = []
    for number in range(ROUNDS):
        first = torch.full((SEQUENCES,), len(PROMPT) - 1 + WIDTH * number)
        windows.state.drafts[:] = NO_TOKEN
        logits = torch.from_numpy(np.stack(target)).repeat(SEQUENCES, 1)
        forward = ForwardResult(windows.placed, logits, first, windows.placed.slots.new_empty(0, 3))
        plan: Any = SimpleNamespace(masks=None, logprobs=-1)
        drawn = windows.chooser.choose(forward, plan)
        assert (drawn.emitted == 1).all()
        tokens.append(drawn.tokens[:, 0].numpy())
    expected = ROUNDS * SEQUENCES * windows.toy.probabilities(target[0], [])
    assert p_value(np.bincount(np.concatenate(tokens), minlength=VOCAB), expected) > LEAST_P


def test_a_row_without_a_finite_logit_is_reported() -> None:
    windows, target = Windows(), [some_logits(5), some_logits(6), some_logits(8)]
    first = torch.full((SEQUENCES,), len(PROMPT) - 1)
    windows.draft(target[:DRAFTS], first)
    logits = torch.from_numpy(np.stack(target)).repeat(SEQUENCES, 1)
    logits[0] = torch.nan
    logits[WIDTH + 0] = -torch.inf
    logits[2 * WIDTH, 3] = torch.inf
    forward = ForwardResult(windows.placed, logits, first, windows.placed.slots.new_empty(0, 3))
    plan = SamplePlan(step=0, updates=None, logprobs=-1, all_greedy=False)  # type: ignore[arg-type]
    drawn = windows.chooser.choose(forward, plan)
    assert drawn.finite[:4].tolist() == [False, False, False, True]
