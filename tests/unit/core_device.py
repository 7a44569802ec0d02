"""A device in numpy that follows the contract of `model/runner.py` to the letter, for tests of the pure core.

Its "model" makes every mistake of the core visible in the text: the cache entry of a position is a hash of
the entry before it (read through the block table), of the window ring, the token and the position; the next
token is a hash of all visible entries, the three previous tokens and the output position. So a wrong block, a
stale entry, a bad window state, a lost token or an off-by-one position each change what is generated from
then on. `Model.solo` computes the same text from the tokens alone.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.model.runner import (
    HISTORY,
    NO_TOKEN,
    Int32s,
    RunnerShape,
    StepPlan,
    StepResult,
    UInt64s,
)
from stepahead.engine.types import Occupant, Request

WORD = 2**64


def mix(*parts: int) -> int:
    """SplitMix64 folded over integers."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) % WORD
        state ^= state >> 30
        state = state * 0xBF58476D1CE4E5B9 % WORD
        state ^= state >> 27
        state = state * 0x94D049BB133111EB % WORD
        state ^= state >> 31
    return state


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the text depends on, and how often scripted drafts are right (in 16ths)."""

    vocab: int
    window: int
    draft_luck: int = 11

    def entry(self, before: int, ring: UInt64s, token: int, position: int) -> int:
        """What is cached of a position; `ring` are the entries of the window before it."""
        return mix(before, int(ring.sum(dtype=np.uint64)), token, position)

    def next_token(self, entries: UInt64s, history: list[int], seed: int, output: int) -> int:
        total = int(entries.sum(dtype=np.uint64))
        return mix(total, *[token + 1 for token in history], seed, output) % self.vocab

    def solo(self, request: Request) -> list[int]:
        """The whole output of a request that runs alone, cut at its end id or its cap."""
        tokens = np.frombuffer(request.prompt, dtype=np.int32).tolist()
        origin, params = len(tokens), request.params
        entries: list[int] = []
        output: list[int] = []
        while len(output) < params.max_output:
            for position in range(len(entries), len(tokens)):
                ring = np.array(entries[-self.window :], dtype=np.uint64)
                before = entries[-1] if entries else 0
                entries.append(self.entry(before, ring, tokens[position], position))
            seen = np.array(entries, dtype=np.uint64)
            padded = [NO_TOKEN] * HISTORY + tokens
            seed = mix(params.seed, request.choice)
            token = self.next_token(seen, padded[-HISTORY:], seed, len(tokens) - origin)
            tokens.append(token)
            output.append(token)
            if token in params.end_ids:
                break
        return output


class FakeDevice:
    """Runs forward and sampling of one plan at once; what a host may not know yet is the driver's
    business."""

    def __init__(self, model: Model, shape: RunnerShape, block_tokens: int, backtracking: int) -> None:
        self.model, self.shape = model, shape
        slots = shape.state_slots
        self.ring_size = model.window + backtracking
        generator = np.random.default_rng(1)  # garbage everywhere: nothing is ever cleared
        self.entries: UInt64s = generator.integers(WORD, size=(shape.blocks, block_tokens), dtype=np.uint64)
        self.rings: UInt64s = generator.integers(WORD, size=(slots, self.ring_size), dtype=np.uint64)
        live = 1 + shape.sequence_slots
        self.table: Int32s = np.zeros((live, shape.table_columns), dtype=np.int32)
        self.position: Int32s = np.full(live, 10**6, dtype=np.int32)
        self.token: Int32s = np.zeros(live, dtype=np.int32)
        self.history: Int32s = np.zeros((live, HISTORY), dtype=np.int32)
        self.drafts: Int32s = np.zeros((live, max(shape.draft_tokens, 1)), dtype=np.int32)
        self.occupants: dict[int, Occupant] = {}
        self.solutions: dict[int, list[int]] = {}

    def run(self, plan: StepPlan, admitted: tuple[Occupant, ...]) -> StepResult:
        """Forward and sampling of one step."""
        for source, destination in plan.state_copies.tolist():
            self.rings[destination] = self.rings[source]
        for slot, column, block in plan.table_updates.tolist():
            self.table[slot, column] = block
        for occupant in admitted:
            self.occupants[occupant.slot] = occupant
        layout = plan.layout
        count, width = layout.slots.size, self.shape.draft_tokens + 1
        tokens = np.full((count, width), NO_TOKEN, dtype=np.int32)
        emitted = np.zeros(count, dtype=np.int32)
        positions = np.zeros(count, dtype=np.int32)
        chunk = 0
        for row, slot in enumerate(layout.slots.tolist()):
            length = int(layout.query_lengths[row])
            if row < layout.decode_count:
                positions[row] = self.position[slot]
                assert positions[row] <= plan.first_positions[row]
                fed = [int(self.token[slot]), *self.drafts[slot, : length - 1].tolist()]
                history = self.history[slot].tolist()
            else:
                positions[row] = plan.first_positions[row]
                fed = plan.chunk_tokens[chunk : chunk + length].tolist()
                history = plan.chunk_history[row - layout.decode_count].tolist()
                chunk += length
            sampled = self._forward(slot, int(positions[row]), fed, history, row < layout.decode_count)
            if not layout.samples[row]:
                self.position[slot] = positions[row] + length
                continue
            accepted = 0
            if row < layout.decode_count:
                while accepted < length - 1 and fed[accepted + 1] == sampled[accepted]:
                    accepted += 1
                given = sampled[: accepted + 1]
            else:
                given = sampled[-1:]
            tokens[row, : len(given)] = given
            emitted[row] = len(given)
            advance = len(given) if row < layout.decode_count else length
            self.position[slot] = positions[row] + advance
            self.token[slot] = given[-1]
            self.history[slot] = (history + fed[:advance])[-HISTORY:]
            self._draft(slot)
        drafted = layout.query_lengths - 1
        drafted[layout.decode_count :] = 0
        return StepResult(
            step=plan.step,
            tokens=tokens,
            emitted=emitted,
            drafted=drafted,
            positions=positions,
            finite=np.ones(count, dtype=np.bool_),
        )

    def _forward(
        self, slot: int, first: int, fed: list[int], history: list[int], all_rows: bool
    ) -> list[int]:
        """Writes the rows' entries, then the tokens that rows sample: all, or only the last one's."""
        size = self.entries.shape[1]
        request = self.occupants[slot].request
        origin = len(request.prompt) // 4
        seed = mix(request.params.seed, request.choice)
        sampled = []
        for offset, token in enumerate(fed):
            position = first + offset
            assert position < self.shape.max_positions
            before = 0
            if position:
                before = int(self.entries[self.table[slot, (position - 1) // size], (position - 1) % size])
            block = self.table[slot, position // size]
            assert block, f"slot {slot} writes position {position} into the scratch block"
            recent = np.arange(max(position - self.model.window, 0), position)
            ring = self.rings[slot, recent % self.ring_size]
            self.entries[block, position % size] = self.model.entry(before, ring, token, position)
            self.rings[slot, position % self.ring_size] = self.entries[block, position % size]
            history = [*history, token][-HISTORY:]
            if all_rows or offset == len(fed) - 1:
                columns = position // size + 1
                seen = self.entries[self.table[slot, :columns]].reshape(-1)[: position + 1]
                sampled.append(self.model.next_token(seen, history, seed, position + 1 - origin))
        return sampled

    def _draft(self, slot: int) -> None:
        """Scripted: right with a chance that depends on the position only."""
        request = self.occupants[slot].request
        solution = self.solutions[request.key]
        ahead = int(self.position[slot]) + 1 - len(request.prompt) // 4
        for place in range(self.shape.draft_tokens):
            index = ahead + place
            lucky = mix(request.params.seed, index, 77) % 16 < self.model.draft_luck
            right = solution[index] if index < len(solution) else 0
            self.drafts[slot, place] = right if lucky else (right + 1) % self.model.vocab
