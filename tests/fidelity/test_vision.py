"""The vision encoder against a second writing of it, patch by patch and head by head (model_spec 6)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.engine.model.v41.config import ModelConfig, VisionConfig
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.vision import PatchGrid, VisionEncoder, load_vision_weights

from .configurations import small_config
from .fast_path import NamedTensors

VISION = VisionConfig(
    num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24, patch_size=2,
    rope_theta=10000.0, downsample_ratio=3, max_image_tokens=64, min_pixels=16,
)  # fmt: skip
PIXELS = 3 * VISION.patch_size**2
GRIDS = [PatchGrid(4, 5), PatchGrid(3, 3), PatchGrid(1, 7)]


def config() -> ModelConfig:
    return small_config(vision=VISION)


def random_tensors(language_dim: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int, mean: float = 0.0) -> Tensor:
        scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.3
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale + mean

    dim, inner, fold = VISION.hidden_size, VISION.intermediate_size, VISION.hidden_size * 9
    tensors = {
        # A convolution's shape: the loader must flatten it in channel, row, column order.
        "vision.patch_embed.proj.weight": draw(dim, 3, VISION.patch_size, VISION.patch_size),
        "vision.patch_embed.proj.bias": draw(dim),
        "vision.norm.weight": draw(dim, mean=1.0),
        "aligner.w1.weight": draw(language_dim, fold), "aligner.w1.bias": draw(language_dim),
        "aligner.w2.weight": draw(language_dim, language_dim), "aligner.w2.bias": draw(language_dim),
        "image_start": draw(language_dim), "image_end": draw(language_dim),
        "image_newline": draw(language_dim),
    }  # fmt: skip
    for layer in range(VISION.num_hidden_layers):
        prefix = f"vision.blocks.{layer}"
        tensors |= {
            f"{prefix}.norm1.weight": draw(dim, mean=1.0), f"{prefix}.norm2.weight": draw(dim, mean=1.0),
            f"{prefix}.attn.wqkv.weight": draw(3 * dim, dim), f"{prefix}.attn.wqkv.bias": draw(3 * dim),
            f"{prefix}.attn.wo.weight": draw(dim, dim), f"{prefix}.attn.wo.bias": draw(dim),
            f"{prefix}.mlp.w1.weight": draw(2 * inner, dim), f"{prefix}.mlp.w2.weight": draw(dim, inner),
        }  # fmt: skip
    return tensors


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return random_tensors(config().hidden_size)


@pytest.fixture(scope="module")
def encoder(tensors: dict[str, Tensor]) -> VisionEncoder:
    numerics = exact(torch.float64)
    weights = load_vision_weights(VISION, NamedTensors(tensors), numerics, torch.device("cpu"))
    return VisionEncoder(config(), numerics, weights)


def patches_of(grid: PatchGrid, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + grid.height * 10 + grid.width)
    return torch.randn(grid.height * grid.width, PIXELS, generator=generator, dtype=torch.float64)


def padded(images: list[Tensor]) -> Tensor:
    """Padding is noise: whatever stands there must not matter."""
    most = max(len(image) for image in images)
    batch = torch.full((len(images), most, PIXELS), 1e3, dtype=torch.float64)
    for row, image in zip(batch, images, strict=True):
        row[: len(image)] = image
    return batch


class SlowEncoder:
    """One image, one patch, one head at a time."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.w = {name: tensor.numpy() for name, tensor in tensors.items()}

    def affine(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean() + 1e-6) * self.w[name]

    def turned(self, head: np.ndarray, row: int, column: int) -> np.ndarray:
        """Dimension i of the first half pairs with dimension i of the second."""
        half = len(head) // 2
        frequencies = [VISION.rope_theta ** (-2 * i / half) for i in range(half // 2)]
        angles = [row * f for f in frequencies] + [column * f for f in frequencies]
        result = head.copy()
        for i, angle in enumerate(angles):
            a, b = head[i], head[half + i]
            result[i] = a * math.cos(angle) - b * math.sin(angle)
            result[half + i] = a * math.sin(angle) + b * math.cos(angle)
        return result

    def attention(self, xs: list[np.ndarray], prefix: str, grid: PatchGrid) -> list[np.ndarray]:
        dim, heads = VISION.hidden_size, VISION.num_attention_heads
        size = dim // heads
        fused = [self.affine(f"{prefix}.wqkv", x) for x in xs]
        places = [divmod(patch, grid.width) for patch in range(len(xs))]
        outputs = []
        for mine in range(len(xs)):
            joined = []
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                query = self.turned(fused[mine][:dim][part], *places[mine])
                own_keys = [f[dim : 2 * dim][part] for f in fused]
                keys = [self.turned(key, *place) for key, place in zip(own_keys, places, strict=True)]
                scores = np.array([query @ key for key in keys]) * size**-0.5
                weights = np.exp(scores - scores.max())
                values = np.array([f[2 * dim :][part] for f in fused])
                joined.append(weights / weights.sum() @ values)
            outputs.append(
                self.w[f"{prefix}.wo.weight"] @ np.concatenate(joined) + self.w[f"{prefix}.wo.bias"]
            )
        return outputs

    def feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate, up = np.split(self.w[f"{prefix}.w1.weight"] @ x, 2)
        return self.w[f"{prefix}.w2.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    def encode(self, patches: np.ndarray, grid: PatchGrid) -> np.ndarray:
        weight = self.w["vision.patch_embed.proj.weight"].reshape(VISION.hidden_size, -1)
        xs = [weight @ patch + self.w["vision.patch_embed.proj.bias"] for patch in patches]
        for layer in range(VISION.num_hidden_layers):
            block = f"vision.blocks.{layer}"
            mixed = self.attention([self.norm(x, f"{block}.norm1.weight") for x in xs], f"{block}.attn", grid)
            xs = [x + y for x, y in zip(xs, mixed, strict=True)]
            xs = [x + self.feed_forward(self.norm(x, f"{block}.norm2.weight"), f"{block}.mlp") for x in xs]
        return self.project([self.norm(x, "vision.norm.weight") for x in xs], grid)

    def project(self, xs: list[np.ndarray], grid: PatchGrid) -> np.ndarray:
        features = []
        for top in range(0, grid.height, 3):
            for left in range(0, grid.width, 3):
                cells = [
                    xs[r * grid.width + c] if r < grid.height and c < grid.width else np.zeros_like(xs[0])
                    for r in range(top, top + 3)
                    for c in range(left, left + 3)
                ]
                folded = np.stack(cells, axis=1).ravel()  # channel-major
                hidden = self.affine("aligner.w1", folded)
                erf = np.array([math.erf(v / math.sqrt(2)) for v in hidden])
                features.append(
                    self.w["aligner.w2.weight"] @ (hidden * (1 + erf) / 2) + self.w["aligner.w2.bias"]
                )
        return np.array(features)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.height}x{g.width}")
def test_features_equal_the_slow_writing(
    encoder: VisionEncoder, tensors: dict[str, Tensor], grid: PatchGrid
) -> None:
    patches = patches_of(grid)
    [features] = encoder.encode(patches.unsqueeze(0), [grid])
    expected = SlowEncoder(tensors).encode(patches.numpy(), grid)
    assert np.abs(features.numpy() - expected).max() < 1e-10


def test_images_of_different_sizes_share_a_batch(encoder: VisionEncoder) -> None:
    images = [patches_of(grid) for grid in GRIDS]
    together = encoder.encode(padded(images), GRIDS)
    for image, grid, features in zip(images, GRIDS, together, strict=True):
        [alone] = encoder.encode(image.unsqueeze(0), [grid])
        assert torch.allclose(features, alone, rtol=0, atol=1e-11)


def test_span_places_features_between_the_learned_vectors(
    encoder: VisionEncoder, tensors: dict[str, Tensor]
) -> None:
    grid = GRIDS[0]  # 4 x 5 patches fold to 2 x 2 features
    [features] = encoder.encode(patches_of(grid).unsqueeze(0), [grid])
    span = encoder.span(features, grid)
    newline = tensors["image_newline"]
    expected = [
        tensors["image_start"], features[0], features[1], newline, features[2], features[3], newline,
        tensors["image_end"],
    ]  # fmt: skip
    assert len(span) == grid.folded(3).span_length == 8
    assert torch.equal(span, torch.stack(expected))


def test_a_model_without_a_tower_says_so(encoder: VisionEncoder, tensors: dict[str, Tensor]) -> None:
    weights = load_vision_weights(VISION, NamedTensors(tensors), exact(torch.float64), torch.device("cpu"))
    with pytest.raises(ValueError, match="no vision tower"):
        VisionEncoder(small_config(), exact(torch.float64), weights)
