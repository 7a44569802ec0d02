"""Which tokens each slot holds and how often, counted on the device as they are accepted.

Penalties need every distinct token of a sequence with its count, at every row, also between drafts that are
only assumed. The host learns a step's tokens after the next step was launched, so the device must count; and
a pass over a vocabulary-wide table per row would cost more than all other sampling. So there are two tables:
counts by id, to count in place, and the list of ids seen, to walk. Both are allocated when the first request
with penalties arrives. Bad words need the order, too, but only of the last few tokens.

Invariant: after a step's `advance`, exactly the tokens at positions up to the slot's newest are counted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..runner import NO_TOKEN, EditRows
from .host_arrays import to_device


class SeenTokens:
    """Tables over slots. Counts are 2 * (times in the output) + (1 if in the prompt)."""

    def __init__(self, slots: int, most: int, vocab: int, device: torch.device) -> None:
        self._slots, self._most, self._vocab, self._device = slots, most, vocab, device
        self._counts: Tensor | None = None  # [slots, vocab] int32
        self._ids: Tensor | None = None  # [slots, most + 1]; the last column is scratch
        self._distinct = torch.zeros(slots, dtype=torch.int64, device=device)
        self.recent = torch.zeros(slots, 0, dtype=torch.int64, device=device)  # output only, newest last
        self._bound = np.zeros(slots, dtype=np.int64)  # at least `_distinct`, on the host
        self._walks = True

    @property
    def counts(self) -> Tensor:
        """`[slots, vocab]` int32; `[1, 1]` as long as nobody asked for penalties."""
        return (
            torch.zeros(1, 1, dtype=torch.int32, device=self._device)
            if self._counts is None
            else self._counts
        )

    def keep_counts_only(self, reach: int) -> None:
        """For devices whose kernels read the counts beside the logits: no list to walk, and nothing moves."""
        self._walks = False
        self._counts = torch.zeros(self._slots, self._vocab, dtype=torch.int32, device=self._device)
        self.recent = self.recent.new_full((self._slots, reach), NO_TOKEN)

    def occupy(self, rows: EditRows, index: Tensor, reach: int) -> None:
        """Write newcomers; `reach` is how many recent tokens the longest bad word needs."""
        self._remember(to_device(rows.recent, self._device, torch.int64), index, reach)
        present = (rows.seen_ids >= 0).sum(-1)
        self._bound[rows.slots] = present
        if not present.any():
            return
        counts = self._counted()
        counts.index_fill_(0, index, 0)
        seen = to_device(rows.seen_ids, self._device, torch.int64)
        values = to_device(rows.seen_counts, self._device, torch.int32)
        if self._walks:
            self._tables()[1][index, : seen.shape[1]] = seen
        pads = seen < 0
        counts.index_put_(
            (index.unsqueeze(1).expand_as(seen), seen.masked_fill(pads, 0)),
            values.masked_fill(pads, 0),
            accumulate=True,
        )
        self._distinct[index] = to_device(present, self._device)

    def _remember(self, recent: Tensor, index: Tensor, reach: int) -> None:
        if self.recent.shape[1] < reach:
            wider = self.recent.new_full((self._slots, reach), NO_TOKEN)
            wider[:, reach - self.recent.shape[1] :] = self.recent
            self.recent = wider
        self.recent.index_fill_(0, index, NO_TOKEN)
        self.recent[index, self.recent.shape[1] - recent.shape[1] :] = recent

    def _counted(self) -> Tensor:
        if self._counts is None:
            self._counts = torch.zeros(self._slots, self._vocab, dtype=torch.int32, device=self._device)
        return self._counts

    def _tables(self) -> tuple[Tensor, Tensor]:
        if self._ids is None:
            size = (self._slots, self._most + 1)
            self._ids = torch.zeros(size, dtype=torch.int64, device=self._device)
        return self._counted(), self._ids

    def before(self, slots: Tensor, host_slots: np.ndarray, ahead: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and times in the output, `[rows, seen]`, of everything before each row's draw.

        `ahead` `[rows, places]` are tokens assumed behind those of the slot, NO_TOKEN where none. Ids repeat.
        """
        counts, ids = self._tables()
        width = int(self._bound[host_slots].max())
        known = ids[slots, :width]
        first = known[:, :1]
        unused = torch.arange(width, device=slots.device) >= self._distinct[slots].unsqueeze(1)
        known = torch.where(unused, first, known)
        everything = torch.cat((known, torch.where(ahead < 0, first, ahead)), dim=1)
        times = counts[slots.unsqueeze(1), everything] >> 1
        assumed = (everything.unsqueeze(2) == ahead.unsqueeze(1)).sum(-1)
        return everything, times + assumed

    def recent_before(self, slots: Tensor, ahead: Tensor) -> Tensor:
        """The last output tokens before each row's draw, `[rows, reach]`."""
        said = torch.cat((self.recent[slots], ahead), dim=1)
        count = (ahead >= 0).sum(-1, keepdim=True)
        return said.gather(1, count + torch.arange(self.recent.shape[1], device=slots.device))

    def count(self, slots: Tensor, host_slots: np.ndarray, tokens: Tensor, emitted: Tensor) -> None:
        """Count the first `emitted` of `tokens` `[sequences, places]`."""
        counts, ids = self._tables()
        for place in range(tokens.shape[1]):
            real = place < emitted
            token = tokens[:, place].clamp(min=0)
            old, distinct = counts[slots, token], self._distinct[slots]
            new = real & (old == 0)
            ids[slots, torch.where(new, distinct, self._most)] = token
            self._distinct[slots] = distinct + new
            counts[slots, token] = old + 2 * real.to(torch.int32)
        self._bound[host_slots] = np.minimum(self._bound[host_slots] + tokens.shape[1], self._most)

    def say(self, slots: Tensor, tokens: Tensor, emitted: Tensor) -> None:
        """Append the first `emitted` of `tokens` to the recent ones."""
        said = torch.cat((self.recent[slots], tokens), dim=1)
        width = torch.arange(self.recent.shape[1], device=slots.device)
        self.recent[slots] = said.gather(1, emitted.unsqueeze(1) + width)
