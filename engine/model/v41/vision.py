"""The vision encoder and the projector into the language model (model_spec 6).

Images of a batch may differ in size. Their patches are padded to the longest image and a mask keeps attention
inside each image; a projector then folds 3 x 3 neighbourhoods of patches into one feature each. What enters
here are patches, already resized and normalised; preprocessing belongs to the protocol edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.devices.kernels.reference.norm import rms_norm

from .config import ModelConfig, VisionConfig
from .numerics import Numerics
from .weights import TensorSource

VISION_NORM_EPS = 1e-6


@dataclass(frozen=True)
class Affine:
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class VisionBlockWeights:
    attention_norm: Tensor
    query_key_value: Affine
    attention_output: Affine
    ffn_norm: Tensor
    gate_up: Tensor  # [2 * inner, dim]
    down: Tensor  # [dim, inner]


@dataclass(frozen=True)
class VisionWeights:
    patch: Affine
    blocks: tuple[VisionBlockWeights, ...]
    norm: Tensor
    fold_in: Affine
    fold_out: Affine
    image_start: Tensor  # [language dim]
    image_end: Tensor
    image_newline: Tensor


def load_vision_weights(
    config: VisionConfig, source: TensorSource, numerics: Numerics, device: torch.device
) -> VisionWeights:
    """Read the tower, the projector and the three learned span vectors."""

    def tensor(name: str) -> Tensor:
        return source.read(name, numerics.dtype).to(device)

    def norm(name: str) -> Tensor:
        return source.read(name, numerics.wide).to(device)

    def affine(prefix: str) -> Affine:
        # A patch weight may come as a convolution; channel, row, column is the same order either way.
        return Affine(tensor(f"{prefix}.weight").flatten(1), tensor(f"{prefix}.bias"))

    def block(prefix: str) -> VisionBlockWeights:
        return VisionBlockWeights(
            attention_norm=norm(f"{prefix}.norm1.weight"),
            query_key_value=affine(f"{prefix}.attn.wqkv"),
            attention_output=affine(f"{prefix}.attn.wo"),
            ffn_norm=norm(f"{prefix}.norm2.weight"),
            gate_up=tensor(f"{prefix}.mlp.w1.weight"),
            down=tensor(f"{prefix}.mlp.w2.weight"),
        )

    return VisionWeights(
        patch=affine("vision.patch_embed.proj"),
        blocks=tuple(block(f"vision.blocks.{i}") for i in range(config.num_hidden_layers)),
        norm=norm("vision.norm.weight"),
        fold_in=affine("aligner.w1"),
        fold_out=affine("aligner.w2"),
        image_start=tensor("image_start"),
        image_end=tensor("image_end"),
        image_newline=tensor("image_newline"),
    )


@dataclass(frozen=True)
class PatchGrid:
    """Height and width of one image in patches."""

    height: int
    width: int

    def folded(self, ratio: int) -> PatchGrid:
        """The grid of features after the projector."""
        return PatchGrid(-(-self.height // ratio), -(-self.width // ratio))

    @property
    def span_length(self) -> int:
        """Positions of the image in the token stream: START, rows of IMAGE and NEWLINE, END."""
        return self.height * (self.width + 1) + 2


class VisionEncoder:
    """From patches to the rows that replace an image's placeholder tokens."""

    def __init__(self, config: ModelConfig, numerics: Numerics, weights: VisionWeights) -> None:
        if config.vision is None:
            raise ValueError("this model has no vision tower (vision_config is absent)")
        self._config, self._numerics, self._weights = config.vision, numerics, weights

    @torch.inference_mode()
    def encode(self, patches_images_count_pixels: Tensor, grids: list[PatchGrid]) -> list[Tensor]:
        """Features `[height / 3 * width / 3, language dim]` of each image, row-major.

        `patches` is `[images, patches, channels * patch * patch]`, each image's patches row-major and padded
        at the end; pixels of a patch are in channel, row, column order.
        """
        most = patches_images_count_pixels.shape[1]
        device = patches_images_count_pixels.device
        counts = torch.tensor([g.height * g.width for g in grids], device=device)
        present = torch.arange(most, device=device) < counts.unsqueeze(1)
        turns = torch.stack([self._turns(grid, most, device) for grid in grids])
        hidden = self._weights.patch(patches_images_count_pixels.to(self._numerics.dtype))
        for block in self._weights.blocks:
            hidden = hidden + self._attention(block, hidden, present, turns)
            hidden = hidden + self._feed_forward(block, hidden)
        hidden = rms_norm(hidden, self._weights.norm, VISION_NORM_EPS)
        return [self._fold(image, grid) for image, grid in zip(hidden, grids, strict=True)]

    def span(self, features: Tensor, grid: PatchGrid) -> Tensor:
        """Embeddings `[span, language dim]` of one image's positions; `grid` counts patches."""
        folded = grid.folded(self._config.downsample_ratio)
        lines = features.view(folded.height, folded.width, -1)
        newline = self._weights.image_newline.expand(folded.height, 1, -1)
        body = torch.cat((lines, newline), dim=1).flatten(0, 1)
        return torch.cat((self._weights.image_start[None], body, self._weights.image_end[None]))

    def _turns(self, grid: PatchGrid, most: int, device: torch.device) -> Tensor:
        """Angles `[patches, head_dim / 2]`: a quarter of the head turns by row, a quarter by column."""
        quarter = self._config.head_dim // 4
        exponents = torch.arange(quarter, dtype=torch.float64, device=device) / (2 * quarter)
        frequencies = self._config.rope_theta ** (-2 * exponents)
        number = torch.arange(most, device=device)
        rows, columns = number // grid.width, number % grid.width
        angles = torch.cat([axis.unsqueeze(1) * frequencies for axis in (rows, columns)], dim=1)
        return angles.to(self._numerics.wide)

    def _attention(self, block: VisionBlockWeights, hidden: Tensor, present: Tensor, turns: Tensor) -> Tensor:
        """Bidirectional attention inside each image."""
        heads, dim = self._config.num_attention_heads, self._config.head_dim
        normed = rms_norm(hidden, block.attention_norm, VISION_NORM_EPS)
        fused = block.query_key_value(normed).view(*hidden.shape[:2], 3, heads, dim)
        query, key, value = fused.permute(2, 0, 3, 1, 4)
        query, key = (_rotate_halves(x, turns.unsqueeze(1)) for x in (query, key))
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=present[:, None, None, :], scale=dim**-0.5
        )
        return block.attention_output(attended.transpose(1, 2).flatten(2))

    def _feed_forward(self, block: VisionBlockWeights, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, block.ffn_norm, VISION_NORM_EPS)
        gate, up = functional.linear(normed, block.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, block.down)

    def _fold(self, image_patches_dim: Tensor, grid: PatchGrid) -> Tensor:
        """Pad to whole neighbourhoods, gather each channel-major, project."""
        ratio = self._config.downsample_ratio
        image = image_patches_dim[: grid.height * grid.width].view(grid.height, grid.width, -1)
        padding = (0, 0, 0, -grid.width % ratio, 0, -grid.height % ratio)
        padded = functional.pad(image, padding).permute(2, 0, 1).unsqueeze(0)
        neighbourhoods = functional.unfold(padded, kernel_size=ratio, stride=ratio)[0].t()
        return self._weights.fold_out(functional.gelu(self._weights.fold_in(neighbourhoods)))


def _rotate_halves(x: Tensor, angles: Tensor) -> Tensor:
    """Half-split rotation: dimension i of the first half pairs with dimension i of the second."""
    first, second = x.to(angles.dtype).chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)
