"""Batches of training rows, assembled on the device from documents drawn by source weight.

Every row starts at the start of a document, as every prompt does, and is filled with further random
documents until it is full. Drawing with replacement needs no epoch bookkeeping and is one gather per batch.
"""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IGNORE = -100


class Documents:
    """Token ids of all documents of one split on a device."""

    def __init__(self, path: Path, device: torch.device, *, held_out: bool) -> None:
        arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        self.sources: list[tuple[str, float]] = [
            tuple(s) for s in json.loads(bytes(arrays["sources"]).decode())
        ]
        self.token_map = arrays["token_map"]
        ends = np.cumsum(arrays["lengths"], dtype=np.int64)
        kept = np.flatnonzero(arrays["held_out"] == held_out)
        self.tokens = torch.as_tensor(arrays["tokens"].astype(np.int32), device=device)
        self.starts = torch.as_tensor((ends - arrays["lengths"])[kept], device=device)
        self.lengths = torch.as_tensor(arrays["lengths"][kept].astype(np.int64), device=device)
        self.bytes = torch.as_tensor(arrays["bytes"][kept].astype(np.int64), device=device)
        self.source = torch.as_tensor(arrays["source"][kept].astype(np.int64), device=device)
        self._chances = torch.as_tensor(self._document_chances(arrays, kept), device=device)

    def _document_chances(self, arrays: np.lib.npyio.NpzFile, kept: np.ndarray) -> np.ndarray:
        """Cumulative chances: a source's share of the *tokens* is its weight, its documents are equal."""
        source, lengths = arrays["source"][kept], arrays["lengths"][kept]
        chances = np.zeros(len(kept))
        for index, (_, weight) in enumerate(self.sources):
            mine = source == index
            if mine.any():
                chances[mine] = weight / lengths[mine].sum()
        return np.cumsum(chances / chances.sum())

    def batch(self, rows: int, length: int, pad: int, per_row: int = 48) -> tuple[Tensor, Tensor]:
        """Tokens and next-token targets, `[rows, length]`; targets are IGNORE where a row ran out."""
        device = self.tokens.device
        draws = torch.rand(rows, per_row, device=device, dtype=torch.float64)
        picked = torch.searchsorted(self._chances, draws).clamp(max=len(self._chances) - 1)
        ends = self.lengths[picked].cumsum(1)
        places = torch.arange(length + 1, device=device).expand(rows, -1).contiguous()
        which = torch.searchsorted(ends, places, right=True)
        full = which < per_row
        which = which.clamp(max=per_row - 1)
        before = ends.gather(1, which) - self.lengths[picked].gather(1, which)
        index = self.starts[picked].gather(1, which) + places - before
        row = torch.where(full, self.tokens[index.clamp(0, len(self.tokens) - 1)].long(), pad)
        return row[:, :-1], torch.where(full[:, 1:], row[:, 1:], IGNORE)

    def document(self, index: int) -> Tensor:
        start = int(self.starts[index])
        return self.tokens[start : start + int(self.lengths[index])].long()
