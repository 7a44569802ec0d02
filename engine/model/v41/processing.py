"""From logits to one token a row under the row's parameters: the work each row needs, and no more.

Rows of a step want different things, and a pass over 129,280 logits costs as much as everything else a row
needs. So the host's mirrors say which rows are edited, filtered or drawn at random; those are copied out and
worked on in pieces that fit a CPU's cache; all others are an argmax. Order of a row's work: penalties,
biases, allowed ids, bad words, end ids too early; temperature; filters; the draw.

Invariant: a row's token depends on its own logits and parameters alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling

from .filtering import Limits, candidates, filter_whole, ranked_groups
from .host_arrays import to_device
from .sampling_slots import (
    ALLOWED,
    BIAS,
    EARLY_BAN,
    FILTER,
    PENALTY,
    PROCESSED,
    RANDOM,
    WORDS,
    SamplingSlots,
)

_TARGET = 0  # the purpose of every coupled draw, see sampling/seeds.py: drafts share their target's noise
_PIECE = 1 << 20
"""Logits worked on at a time on a CPU."""


@dataclass(frozen=True)
class DrawRows:
    """Rows to draw at; `numbers` select them from the logits and may repeat a row."""

    numbers: Tensor  # [rows]
    slots: Tensor  # [rows]
    output: Tensor  # [rows] output position of the token to draw
    ahead: Tensor  # [rows, places] tokens assumed behind the slot's own, NO_TOKEN where none
    host_slots: npt.NDArray[np.int32]  # [rows]

    def only(self, chosen: npt.NDArray[np.intp]) -> DrawRows:
        index = to_device(chosen, self.slots.device)
        return DrawRows(
            self.numbers[index],
            self.slots[index],
            self.output[index],
            self.ahead[index],
            self.host_slots[chosen],
        )


@dataclass(frozen=True)
class Report:
    """Log-probabilities of some rows."""

    numbers: Tensor  # [rows]
    chosen: Tensor  # [rows]
    top: Tensor  # [rows, alternatives]
    top_ids: Tensor  # [rows, alternatives]


@dataclass(frozen=True)
class Draws:
    """A token and the best edited logit of every row; log-probabilities of those that asked for processed."""

    tokens: Tensor  # [rows]
    maxima: Tensor  # [rows]
    reports: list[Report]


def report(distribution: Tensor, numbers: Tensor, tokens: Tensor, alternatives: int) -> Report:
    """Of unnormalised log-probabilities `[rows, vocab]`."""
    total = sampling.log_sum_exp(distribution, sampling.likeliest(distribution)[1]).unsqueeze(1)
    chosen = distribution.gather(1, tokens.unsqueeze(1)) - total
    top, ids = sampling.best(distribution, alternatives)
    return Report(numbers, chosen.squeeze(1), top - total, ids)


def report_kept(kept: sampling.Candidates, numbers: Tensor, tokens: Tensor, alternatives: int) -> Report:
    """Of what filters kept, at least `alternatives` candidates, best first.

    Summed one after another: how many candidates follow those kept depends on the neighbours.
    """
    best = kept.values[:, :1]
    total = (kept.values - best).exp_().cumsum(-1)[:, -1:].log_() + best
    chosen = torch.where(kept.ids == tokens.unsqueeze(1), kept.values, -torch.inf).amax(-1)
    top = kept.values[:, :alternatives] - total
    return Report(numbers, chosen - total.squeeze(1), top, kept.ids[:, :alternatives])


@dataclass(frozen=True)
class _Part:
    """Rows of one kind, their edited logits (a copy of their own), and which of them report."""

    rows: DrawRows
    logits: Tensor  # [rows, vocab]
    likeliest: Tensor  # [rows]
    maxima: Tensor  # [rows]
    asked: npt.NDArray[np.bool_]  # [rows]
    alternatives: int

    def only(self, chosen: npt.NDArray[np.intp]) -> _Part:
        if chosen.size == self.asked.size:
            return self
        index = to_device(chosen, self.likeliest.device)
        return _Part(
            self.rows.only(chosen),
            self.logits.index_select(0, index),
            self.likeliest[index],
            self.maxima[index],
            self.asked[chosen],
            self.alternatives,
        )

    def asking(self) -> Tensor:
        return to_device(np.flatnonzero(self.asked), self.likeliest.device)

    def report_whole(self, distribution: Tensor, drawn: Tensor) -> list[Report]:
        if not self.asked.any():
            return []
        index = self.asking()
        own = distribution.index_select(0, index)
        return [report(own, self.rows.numbers[index], drawn[index], self.alternatives)]


class Processor:
    """Draws under the parameters of the slots."""

    def __init__(self, tables: SamplingSlots) -> None:
        self._tables = tables

    def draw(self, logits: Tensor, rows: DrawRows, alternatives: int = -1) -> Draws:
        """Of the rows of `logits` that `rows.numbers` select; `logits` are left as they are.

        `alternatives`: report so many where processed log-probabilities were asked for; -1: report none.
        """
        work = self._tables.work[rows.host_slots] & ~PROCESSED
        busy = np.flatnonzero(work)
        if busy.size == work.size:
            return self._in_pieces(logits, rows, alternatives)
        tokens, maxima = sampling.likeliest(logits)
        tokens, maxima = tokens[rows.numbers], maxima[rows.numbers]
        if busy.size == 0:
            return Draws(tokens, maxima, [])
        index = to_device(busy, tokens.device)
        draws = self._in_pieces(logits, rows.only(busy), alternatives)
        return Draws(
            tokens.index_copy(0, index, draws.tokens),
            maxima.index_copy(0, index, draws.maxima),
            draws.reports,
        )

    def _in_pieces(self, logits: Tensor, rows: DrawRows, alternatives: int) -> Draws:
        pieces = [self._piece(logits, piece, alternatives) for piece in _pieces(rows, logits)]
        return Draws(
            torch.cat([piece.tokens for piece in pieces]),
            torch.cat([piece.maxima for piece in pieces]),
            [report for piece in pieces for report in piece.reports],
        )

    def _piece(self, logits: Tensor, rows: DrawRows, alternatives: int) -> Draws:
        """Rows that need some work. Three kinds of draw; each kind also reports its own distribution."""
        work = self._tables.work[rows.host_slots]
        edited = logits.index_select(0, rows.numbers)
        self._edit_(edited, rows, work)
        tokens, maxima = sampling.likeliest(edited)
        asked = (self._tables.logprobs[rows.host_slots] >= 0) & (work & PROCESSED > 0) & (alternatives >= 0)
        whole = _Part(rows, edited, tokens, maxima, asked, max(alternatives, 0))
        drawn, reports = tokens.clone(), list[Report]()
        for kind, draw in (
            (0, self._take_likeliest),
            (RANDOM, self._draw_free),
            (RANDOM | FILTER, self._draw_filtered),
        ):
            chosen = np.flatnonzero(work & (RANDOM | FILTER) == kind)
            if chosen.size == 0:
                continue
            drawn[to_device(chosen, tokens.device)], made = draw(whole.only(chosen))
            reports += made
        return Draws(drawn, maxima, reports)

    def probabilities(self, logits: Tensor, rows: DrawRows) -> Tensor:
        """What rows that draw at random draw from, float32 `[rows, vocab]`, each row's sum 1."""
        return torch.cat([self._probabilities(logits, piece) for piece in _pieces(rows, logits)])

    def probability_of(self, logits: Tensor, rows: DrawRows, tokens: Tensor) -> Tensor:
        """`probabilities` of one token a row, `[rows]`, a piece of the rows at a time."""
        found, first = [], 0
        for piece in _pieces(rows, logits):
            last = first + piece.host_slots.size
            own = self._probabilities(logits, piece)
            found.append(own.gather(1, tokens[first:last].unsqueeze(1)).squeeze(1))
            first = last
        return torch.cat(found)

    def report_random(self, logits: Tensor, rows: DrawRows, tokens: Tensor, alternatives: int) -> Report:
        """Of what rows that draw at random draw from, given the tokens that came of it."""
        distribution = self.probabilities(logits, rows).to(logits.dtype).log_()
        return report(distribution, rows.numbers, tokens, alternatives)

    def keys(self, rows: DrawRows, purpose: int) -> Tensor:
        """Random keys of draws at these rows, by output position; purposes as in sampling/seeds.py."""
        tables, slots = self._tables, rows.slots
        return sampling.random_keys(tables.seed[slots], tables.choice[slots], rows.output, purpose)

    def _probabilities(self, logits: Tensor, rows: DrawRows) -> Tensor:
        work = self._tables.work[rows.host_slots]
        scaled = logits.index_select(0, rows.numbers)
        self._edit_(scaled, rows, work)
        temperature = self._tables.temperature[rows.slots].to(scaled.dtype)
        scaled.div_(temperature.unsqueeze(1))
        filtered = np.flatnonzero(work & FILTER)
        if filtered.size:
            index, own = to_device(filtered, scaled.device), rows.only(filtered)
            part = scaled.index_select(0, index)
            limits = self._limits(own, sampling.likeliest(part)[1])
            scaled[index] = filter_whole(part, limits, self._tables.top_k_host[own.host_slots])
        total = sampling.log_sum_exp(scaled, sampling.likeliest(scaled)[1]).unsqueeze(1)
        return scaled.sub_(total).exp_().to(torch.float32)

    def _take_likeliest(self, part: _Part) -> tuple[Tensor, list[Report]]:
        return part.likeliest, part.report_whole(part.logits, part.likeliest)

    def _draw_free(self, part: _Part) -> tuple[Tensor, list[Report]]:
        scaled = self._scale_(part)
        drawn = sampling.gumbel_argmax(scaled, self.keys(part.rows, _TARGET))
        return drawn, part.report_whole(scaled, drawn)

    def _draw_filtered(self, part: _Part) -> tuple[Tensor, list[Report]]:
        """In groups that are worked on alike; see `filtering.py`."""
        drawn, reports = torch.empty_like(part.likeliest), list[Report]()
        self._scale_(part)
        for group, ranked in ranked_groups(self._tables.top_k_host[part.rows.host_slots]):
            own = part.only(group)
            index = to_device(group, drawn.device)
            limits = self._limits(own.rows, own.maxima / self._tables.temperature[own.rows.slots])
            for inside, kept in candidates(own.logits, limits, ranked, own.alternatives):
                if inside is None:
                    drawn[index], made = self._draw_kept(own, kept)
                else:  # on a CPU
                    drawn[index[inside]], made = self._draw_kept(own.only(inside.numpy()), kept)
                reports += made
        return drawn, reports

    def _draw_kept(self, part: _Part, kept: sampling.Candidates | Tensor) -> tuple[Tensor, list[Report]]:
        keys = self.keys(part.rows, _TARGET)
        if isinstance(kept, Tensor):
            drawn = sampling.gumbel_argmax(kept, keys)
            return drawn, part.report_whole(kept, drawn)
        drawn = sampling.draw_candidate(kept.values, kept.ids, keys)
        if not part.asked.any():
            return drawn, []
        index = part.asking()
        own = sampling.Candidates(kept.values[index], kept.ids[index])
        return drawn, [report_kept(own, part.rows.numbers[index], drawn[index], part.alternatives)]

    def _limits(self, rows: DrawRows, maxima: Tensor) -> Limits:
        """`maxima` by temperature."""
        tables, slots = self._tables, rows.slots
        return Limits(maxima, tables.top_k[slots], tables.top_p[slots], tables.min_p[slots])

    def _scale_(self, part: _Part) -> Tensor:
        """Logits by temperature, in place."""
        temperature = self._tables.temperature[part.rows.slots].to(part.logits.dtype)
        return part.logits.div_(temperature.unsqueeze(1))

    def _edit_(self, edited: Tensor, rows: DrawRows, work: npt.NDArray[np.int32]) -> None:
        tables = self._tables
        for bit, edit_ in (
            (PENALTY, self._penalise_),
            (BIAS, self._add_),
            (ALLOWED, self._allow_only_),
            (WORDS, self._ban_words_),
        ):
            chosen = np.flatnonzero(work & bit)
            if chosen.size:
                edit_(edited, to_device(chosen, edited.device), rows.only(chosen))
        if (work & EARLY_BAN).any():
            early = rows.output < tables.min_output[rows.slots]
            sampling.ban_(edited, tables.end_ids[rows.slots], early)

    def _penalise_(self, edited: Tensor, index: Tensor, rows: DrawRows) -> None:
        tables, slots = self._tables, rows.slots
        ids, times = tables.seen.before(slots, rows.host_slots, rows.ahead)
        sampling.penalise_(
            edited,
            index,
            ids,
            times,
            tables.repetition[slots],
            tables.frequency[slots],
            tables.presence[slots],
        )

    def _add_(self, edited: Tensor, index: Tensor, rows: DrawRows) -> None:
        sampling.add_(edited, index, self._tables.bias_ids[rows.slots], self._tables.bias_values[rows.slots])

    def _allow_only_(self, edited: Tensor, index: Tensor, rows: DrawRows) -> None:
        sampling.allow_only_(edited, index, self._tables.allowed_ids[rows.slots])

    def _ban_words_(self, edited: Tensor, index: Tensor, rows: DrawRows) -> None:
        tables, slots = self._tables, rows.slots
        recent = tables.seen.recent_before(slots, rows.ahead)
        sampling.ban_completed_(edited, index, recent, tables.word_beginnings[slots], tables.word_ends[slots])


def _pieces(rows: DrawRows, logits: Tensor) -> Iterator[DrawRows]:
    """All at once on a device with memory to hide; few rows at a time where a cache must hold them."""
    total = rows.host_slots.size
    size = max(_PIECE // logits.shape[1], 1) if logits.device.type == "cpu" else total
    if total <= size:
        yield rows
        return
    for first in range(0, total, size):
        part = slice(first, first + size)
        yield DrawRows(
            rows.numbers[part], rows.slots[part], rows.output[part], rows.ahead[part], rows.host_slots[part]
        )
