"""The DSpark draft block: three layers that guess a block of tokens in one pass (model_spec 3).

The block reads keys that every target forward leaves for it (projected from the attention inputs of a few
upper layers), plus its own rows, which see each other in both directions: the newest token, then noise. Base
logits of all positions come at once; a low-rank Markov term then makes each guess depend on the one before,
so tokens are chosen left to right. How they are chosen is the caller's: `DraftPass` hands out logits a
position at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.sampling.drafting import log_odds
from stepahead.devices.kernels.reference.sampling.tables import DraftInputs

from .caches import Caches
from .compressed import Selections
from .config import ModelConfig
from .layer import Layer
from .numerics import Numerics
from .step import RotaryTables, StepIndex, step_shape
from .streams import Streams, Written
from .weights import DraftWeights, ModelWeights


@dataclass(frozen=True)
class Drafts:
    """One draft round of several sequences."""

    tokens: Tensor  # [sequences, block]
    logits: Tensor  # [sequences, block, vocab], Markov-corrected, wide
    confidence: Tensor  # [sequences, block], raw: before the sigmoid (model_spec 3.2)


@dataclass(frozen=True)
class DraftPass:
    """Hidden states and base logits of one round, before any token is chosen."""

    hidden: Tensor  # [sequences, block, dim], before the norm
    base_logits: Tensor  # [sequences, block, vocab], wide
    weights: DraftWeights
    temperatures: tuple[float, ...]  # of the confidences, by place; empty: 1
    wide: torch.dtype
    operations: Operations
    markov_table: Tensor | None = None  # [vocab, vocab] what each token adds, where that is multiplied out
    peaks: tuple[tuple[float, float], ...] = ()  # scale and offset by place; empty: the head decides

    def chain_inputs(self) -> DraftInputs:
        """What `Operations.draft_chain_` takes."""
        weights = self.weights
        return DraftInputs(
            self.base_logits, self.hidden, weights.markov_embed, weights.markov_head, weights.confidence,
            self.temperatures, self.markov_table,
            tuple(scale for scale, _ in self.peaks), tuple(offset for _, offset in self.peaks),
        )  # fmt: skip

    @property
    def block(self) -> int:
        return self.hidden.shape[1]

    def logits(self, place: int, previous: Tensor) -> Tensor:
        """Logits `[sequences, vocab]` of one place, given the token `[sequences]` before it."""
        markov = self.operations.wide_linear(self.weights.markov_embed[previous], self.weights.markov_head)
        return self.base_logits[:, place] + markov

    def confidence(self, place: int, previous: Tensor) -> Tensor:
        """Raw confidence `[sequences]` that the draft of one place will be accepted."""
        features = torch.cat((self.hidden[:, place], self.weights.markov_embed[previous]), dim=-1)
        return self.operations.wide_linear(
            features.to(self.wide), self.weights.confidence.to(self.wide)
        ).squeeze(-1)

    def acceptance(self, place: int, previous: Tensor, logits: Tensor) -> Tensor:
        """Calibrated log-odds `[sequences]` of acceptance, `logits` being those of the place; see `log_odds`.

        Everything that decides how many drafts to verify reads these.
        """
        return log_odds(self.chain_inputs(), place, self.weights.markov_embed[previous], logits)

    def greedy(self, newest: Tensor) -> Drafts:
        """Choose the likeliest token at every place."""
        previous = newest
        tokens, logits, confidences = [], [], []
        for place in range(self.block):
            logits.append(self.logits(place, previous))
            confidences.append(self.confidence(place, previous))
            previous = logits[-1].argmax(-1)
            tokens.append(previous)
        return Drafts(torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(confidences, 1))


class DraftBlock:
    """The draft layers over the target's embedding and head."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        weights: ModelWeights,
        draft: DraftWeights,
        layers: tuple[Layer, ...],
        tables: RotaryTables,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._config, self._numerics = config, numerics
        self._model_weights, self._weights = weights, draft
        self._layers = layers
        self._tables = tables
        self._markov_table = operations.markov_table(draft.markov_embed, draft.markov_head)

    def store_main_keys(self, features_rows_targets_dim: Tensor, step: StepIndex, caches: Caches) -> None:
        """Write every draft layer's window keys of the rows a target forward has just processed.

        Rows of drafts that will be rejected write too; later rows overwrite them before anyone reads them.
        """
        projected = self._operations.linear(
            self._numerics.matmul_input(features_rows_targets_dim, self._operations),
            self._weights.main_projection,
        )
        main = self._operations.rms_norm(projected, self._weights.main_norm, self._config.rms_norm_eps)
        for layer in self._layers:
            layer.attention.store_main_key(main, step, caches)

    def run(self, newest: Tensor, anchor: Tensor, state_slot: Tensor, caches: Caches) -> DraftPass:
        """One pass for `[sequences]` newest tokens, each at position `anchor + 1`.

        `anchor` is the last position the target has processed and accepted. Nothing persistent is written.
        """
        sequences, block = newest.shape[0], self._config.dspark_block_size
        shape = step_shape(self._config, (), self._tables, caches.shape)
        step = self._operations.index_drafts(shape, anchor, state_slot, block)
        noise, copies = self._config.dspark_noise_token_id, self._config.hc_mult
        embedded = self._operations.embed_drafts(self._model_weights.embed, newest, noise, block, copies)
        entering: Streams | Written = Streams(*embedded)
        selections = Selections()
        for layer in self._layers:
            attention = layer.open(entering, None, step, None)
            entering = layer.close(attention, step, caches, selections, None)
        hidden, normed = entering.finish(self._weights.norm, self._config.rms_norm_eps, self._operations)
        logits = self._operations.wide_linear(normed, self._model_weights.head)
        return DraftPass(
            hidden.view(sequences, block, -1),
            logits.view(sequences, block, -1),
            self._weights,
            self._config.dspark_confidence_temperatures,
            self._numerics.wide,
            self._operations,
            self._markov_table,
            self._config.dspark_peak_calibration,
        )
