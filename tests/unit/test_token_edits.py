"""Edits of single tokens: resolved at submission, told to the device once, in whatever process."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from stepahead.engine.config import RequestLimits
from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.model.array_codec import decode, encode
from stepahead.engine.model.remote import ring_sizes
from stepahead.engine.model.runner import NO_TOKEN, EditRows, SamplePlan, SamplingRows
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.token_edits import LONGEST_WORD
from stepahead.engine.types import Occupant, SamplingParams, TokenEdits
from stepahead.engine.validation import validate

from .core_driver import Setup
from .hashed_driver import request

LIMITS = RequestLimits(
    vocab_size=50, context=64, block_tokens=8, usable_blocks=100, lookahead=4, eos_token_ids=(1,),
    max_logprobs=20, max_stop_ids=4, max_listed_ids=6,
)  # fmt: skip


def resolved(**fields: Any) -> TokenEdits | None:
    return validate(np.zeros(2, np.int32), SamplingParams(**fields), LIMITS).edits


def test_an_id_has_one_bias_and_a_ban_wins() -> None:
    edits = resolved(logit_bias={3: 2.0, 4: -1.0}, banned_token_ids=(4, 4), bad_words=((5,), (6, 7), (6, 7)))
    assert edits == TokenEdits(bias=((3, 2.0), (4, -math.inf), (5, -math.inf)), bad_words=((6, 7),))


def test_allowed_ids_are_unique_and_lack_the_banned() -> None:
    edits = resolved(allowed_token_ids=(9, 3, 9, 4), banned_token_ids=(4,))
    assert edits is not None
    assert edits.allowed == (9, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"banned_token_ids": (2,) * 7},
        {"bad_words": ((2, 3, 4), (5, 6, 7, 8))},  # together
        {"logit_bias": dict.fromkeys(range(7), 1.0)},
        {"allowed_token_ids": (3, 4), "bad_words": ((5, 3), (5, 4))},
        {"allowed_token_ids": (1, 3), "stop_token_ids": (3,), "min_tokens": 1},
    ],
)
def test_too_long_or_leaving_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        resolved(**fields)


def test_end_ids_may_be_all_that_is_allowed_without_min_tokens() -> None:
    assert resolved(allowed_token_ids=(1,)) is not None


def occupant(slot: int, prompt: list[int], generated: list[int], edits: TokenEdits | None) -> Occupant:
    output = np.array(generated, dtype=np.int32)
    made = request(slot, prompt, edits=edits)
    return Occupant(slot=slot, request=made, output=output.size, generated=output.tobytes())


PENALISED = TokenEdits(frequency=0.5, bad_words=((7, 8, 9), (4, 5)))
BIASED = TokenEdits(bias=((2, 1.5), (3, -math.inf)), allowed=(2, 6, 8))


def test_newcomers_bring_what_they_have_seen() -> None:
    rows = edit_rows(
        [
            occupant(3, [7, 4, 7], [4, 9, 4], PENALISED),
            occupant(1, [5], [], None),
            occupant(2, [8, 8], [], BIASED),
        ]
    )
    assert rows is not None
    assert rows.slots.tolist() == [3, 2]
    assert rows.frequency.tolist() == [0.5, 0.0]
    assert rows.repetition.tolist() == [1.0, 1.0]
    assert rows.seen_ids.tolist() == [[4, 7, 9], [NO_TOKEN] * 3]
    assert rows.seen_counts[0].tolist() == [5, 1, 2]  # twice in the output and in the prompt; prompt; once
    assert rows.recent.tolist() == [[9, 4], [NO_TOKEN, NO_TOKEN]]
    assert rows.word_beginnings.tolist() == [[[7, 8], [NO_TOKEN, 4]], [[NO_TOKEN] * 2] * 2]
    assert rows.word_ends.tolist() == [[9, 5], [NO_TOKEN, NO_TOKEN]]
    assert rows.bias_ids.tolist() == [[NO_TOKEN, NO_TOKEN], [2, 3]]
    assert rows.bias_values[1].tolist() == [1.5, -math.inf]
    assert rows.allowed_ids.tolist() == [[NO_TOKEN] * 3, [2, 6, 8]]


def test_nobody_with_edits_is_no_row() -> None:
    assert edit_rows([occupant(1, [5], [3], None)]) is None
    assert edit_rows([]) is None


def test_edits_cross_a_process_inside_their_plan() -> None:
    newcomers = [occupant(3, [7, 4, 7], [4], PENALISED)]
    updates = SamplingTable(Setup().shape()).occupy(newcomers)
    plan = SamplePlan(step=1, updates=updates, logprobs=-1, all_greedy=True, edits=edit_rows(newcomers))
    nested: dict[str, type[msgspec.Struct]] = {"updates": SamplingRows, "edits": EditRows}
    arrived = decode(encode(plan), SamplePlan, nested)
    assert plan.edits is not None
    assert arrived.edits is not None
    for name in EditRows.__struct_fields__:
        assert np.array_equal(getattr(arrived.edits, name), getattr(plan.edits, name)), name


def test_the_ring_to_another_process_has_room_for_the_longest_lists() -> None:
    shape = msgspec.structs.replace(Setup().shape(), max_listed_ids=1000)
    ids = tuple(range(1000))
    words = (*((i, i) for i in range(492)), ids[:LONGEST_WORD])
    edits = TokenEdits(presence=1.0, bias=tuple((i, 1.0) for i in ids), allowed=ids, bad_words=words)
    rows = edit_rows([occupant(s, [0] * 9, [], edits) for s in range(1, shape.sequence_slots + 1)])
    assert rows is not None
    assert sum(part.nbytes for part in encode(rows)) < ring_sizes(shape).requests / 3
