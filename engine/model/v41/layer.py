"""One layer: an attention and a feed-forward sublayer between hyper-connections (model_spec 2.2, 8).

The order inside a layer is easy to get wrong, so it is written once, here: memory, then the draft block's
tap, then the coefficients from the streams, then contraction with the coefficients *of the sublayer before*.
At the YOCO boundary the rows that a truncated prompt does not need leave after the sources have stored their
keys, so `open` and `close` are two calls with that cut between them. What a sublayer writes mixes into the
streams when the next one opens (`streams.py`): the last line of one layer is done by the first of the next.
"""

from __future__ import annotations

from torch import Tensor

from stepahead.devices.kernels.operations import Operations

from .attention import Attention
from .caches import Caches
from .compressed import Selections
from .config import ModelConfig
from .engram_tables import EngramTable
from .feed_forward import FeedForward
from .memory import Memory
from .numerics import Numerics
from .roles import LayerRole
from .step import Probe, StepIndex
from .streams import Opener, OpenSublayer, Streams, Written
from .weights import BlockWeights


class Layer:
    """A trunk or draft layer."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        role: LayerRole,
        weights: BlockWeights,
        engram_table: EngramTable | None,
        operations: Operations,
    ) -> None:
        self.role = role
        self._operations = operations
        device = weights.attention_norm.device
        self.attention = Attention(config, numerics, role, weights.attention, operations)
        self._feed_forward = FeedForward(config, numerics, role.layer_id, weights.ffn, operations)
        self._memory = None
        if weights.engram is not None and engram_table is not None:
            self._memory = Memory(
                config, numerics, role.layer_id, weights.engram, engram_table, device, operations
            )
        self._open_attention = Opener(config, weights.attention_mix, weights.attention_norm, operations)
        self._open_feed_forward = Opener(config, weights.ffn_mix, weights.ffn_norm, operations)

    def open(
        self, entering: Streams | Written, ngrams: Tensor | None, step: StepIndex, probe: Probe | None
    ) -> OpenSublayer:
        """Remember, where this layer has a memory, and open the attention."""
        if self._memory is not None and ngrams is not None:
            streams = entering.mixed(self._operations)
            entering = Streams(self._memory(streams.value, ngrams, step.image_mask, probe), streams.pre)
        attention = self._open_attention(entering)
        if probe is not None:
            for name, tensor in (("pre", attention.pre), ("post", attention.post), ("comb", attention.comb)):
                probe(f"attention_{name}", self.role.layer_id, tensor)
        return attention

    def close(
        self,
        attention: OpenSublayer,
        step: StepIndex,
        caches: Caches,
        selections: Selections,
        probe: Probe | None,
    ) -> Streams | Written:
        """Run both sublayers from the attention's open state."""
        attended = self.attention(attention.inputs, step, caches, selections, probe)
        feed_forward = self._open_feed_forward(attention.write(attended))
        written = feed_forward.write(self._feed_forward(feed_forward.inputs, step.image_mask, probe))
        if probe is None:
            return written
        streams = written.mixed(self._operations)
        probe("streams", self.role.layer_id, streams.value)
        probe("carried_pre", self.role.layer_id, streams.pre)
        return streams
