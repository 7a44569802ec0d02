"""How likely a prompt's own tokens were: the head over prompt rows, a bounded number of them at a time.

A prompt chunk of 2,048 rows has a gigabyte of logits at the vocabulary of the real model, of which a caller
wants a few numbers a row. So the trunk leaves the hidden rows, and logits live for one piece of them. Always
the model's own distribution: nobody drew the prompt, and a filter would call most of it impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..runner import PromptScores, ScoredRows
from .host_arrays import start_copy, to_device
from .model import Model
from .processing import report

LOGITS_AT_ONCE = 1 << 26
"""Logits that live at a time: 256 MiB, 519 rows of the largest vocabulary."""
_LOGITS_AT_ONCE_ON_CPU = 1 << 22
"""What the reading of logits, several passes, finds in a CPU's caches at least in part."""


@dataclass(frozen=True)
class DeviceScores:
    """`PromptScores` on the device."""

    logprobs: Tensor  # [rows]
    top: Tensor  # [rows, alternatives]
    top_ids: Tensor  # [rows, alternatives]

    def start_copy(self) -> DeviceScores:
        """The same on the host, filled when the stream has come this far."""
        return DeviceScores(
            start_copy(self.logprobs.to(torch.float32)),
            start_copy(self.top.to(torch.float32)),
            start_copy(self.top_ids.to(torch.int32)),
        )

    def to_host(self) -> PromptScores:
        """Of what `start_copy` gave, once it is filled."""
        return PromptScores(
            logprobs=self.logprobs.numpy(), top_logprobs=self.top.numpy(), top_tokens=self.top_ids.numpy()
        )


def score_rows(model: Model, hidden_rows_dim: Tensor, scored: ScoredRows) -> DeviceScores:
    """Log-probabilities behind hidden rows before the final norm, those of `scored.rows` in that order."""
    tokens = to_device(scored.tokens, hidden_rows_dim.device, torch.int64)
    most = _LOGITS_AT_ONCE_ON_CPU if hidden_rows_dim.device.type == "cpu" else LOGITS_AT_ONCE
    size = max(most // model.config.vocab_size, 1)
    made = [
        report(model.logits(hidden), token, token, scored.alternatives)
        for hidden, token in zip(hidden_rows_dim.split(size), tokens.split(size), strict=True)
    ]
    return DeviceScores(
        torch.cat([piece.chosen for piece in made]),
        torch.cat([piece.top for piece in made]),
        torch.cat([piece.top_ids for piece in made]),
    )
