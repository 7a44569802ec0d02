"""The training code computes the engine's model: same logits, same generation, same drafts; and it learns."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.engine.model.v41.config import ModelConfig, load_config
from tests.fidelity.fast_path import FastModel
from tests.fidelity.random_weights import random_weights

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from nano.decode import Decoder, greedy  # noqa: E402
from nano.draft import DraftModel  # noqa: E402
from nano.measure import accepted_lengths, walk  # noqa: E402
from nano.model import TrainingModel  # noqa: E402
from nano.parameters import initial_weights, stacked_specs, unstack  # noqa: E402
from nano.rounding import stored_value  # noqa: E402

CPU = torch.device("cpu")
LENGTH = 192  # three windows; more entries than the top-k and than the candidate blocks hold


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(ROOT / "engine/nano")


@pytest.fixture(scope="module")
def published(config: ModelConfig) -> dict[str, Tensor]:
    return random_weights(config, seed=3)


@pytest.fixture(scope="module")
def token_map(config: ModelConfig) -> np.ndarray:
    return np.random.default_rng(0).integers(0, config.engram_compressed_vocab_size, config.vocab_size)


@pytest.fixture(scope="module")
def model(config: ModelConfig, token_map: np.ndarray) -> TrainingModel:
    return TrainingModel(config, token_map, CPU, length=LENGTH, wide_type=torch.float64)


@pytest.fixture(scope="module")
def weights(config: ModelConfig, published: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published weights under their trained names."""
    stacked = {}
    for name, spec in stacked_specs(config).items():
        if ".experts.w" in name:
            prefix, matrix = name.rsplit(".experts.", 1)
            stacked[name] = torch.stack(
                [published[f"{prefix}.experts.{e}.{matrix}"] for e in range(spec.shape[0])]
            )
        else:
            stacked[name] = published[name]
    return stacked


@pytest.fixture(scope="module")
def tokens(config: ModelConfig) -> Tensor:
    return torch.randint(32, config.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def engine(config: ModelConfig, published: dict[str, Tensor], token_map: np.ndarray) -> FastModel:
    return FastModel(config, published, token_map=token_map.tolist(), blocks=12, slots=4, max_rows=512)


def test_training_forward_is_the_engines_forward(
    model: TrainingModel, weights: dict[str, Tensor], tokens: Tensor, engine: FastModel
) -> None:
    outputs = model.forward(weights, tokens, train=False)
    logits = model.logits(weights, outputs.hidden).view(2, LENGTH, -1)
    assert not outputs.selected[7][:, -1].all()  # the selection really selects
    for row in range(2):
        fed = engine.fresh_session().feed(tokens[row].tolist())
        np.testing.assert_allclose(logits[row].numpy(), fed.logits, atol=1e-9)


def test_generation_continues_like_the_forward(
    model: TrainingModel, weights: dict[str, Tensor], tokens: Tensor
) -> None:
    text = Decoder(model, weights).generate(tokens[:, :5], LENGTH, greedy)
    outputs = model.forward(weights, text, train=False)
    chosen = model.logits(weights, outputs.hidden).view(2, LENGTH, -1).argmax(-1)
    assert torch.equal(text[:, 5:], chosen[:, 4:-1])


def test_drafts_are_the_engines_drafts(
    model: TrainingModel, weights: dict[str, Tensor], tokens: Tensor, engine: FastModel
) -> None:
    draft, anchors = DraftModel(model), [10, 100]
    outputs = model.forward(weights, tokens, train=False)
    assert outputs.features is not None
    keys = draft.main_keys(weights, outputs.features)
    newest = tokens[:, [a + 1 for a in anchors]]
    hidden, _, _ = draft.hidden(weights, keys, newest, torch.tensor([anchors, anchors]))
    drafted, confidence = draft.greedy(weights, hidden, newest)
    for place, anchor in enumerate(anchors):
        session = engine.fresh_session()
        session.feed(tokens[0, : anchor + 1].tolist())
        expected = session.draft(int(tokens[0, anchor + 1]))
        assert drafted[0, place].tolist() == list(expected.tokens)
        np.testing.assert_allclose(confidence[0, place].numpy(), expected.confidences, atol=1e-9)


def test_accepted_lengths_compare_drafts_with_the_text(
    model: TrainingModel, weights: dict[str, Tensor], tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = DraftModel(model)
    truth = tokens.unfold(1, draft.block, 1)[:, 2:]
    wrong_at = torch.arange(truth.shape[1]) % (draft.block + 1)

    def guess(_: dict[str, Tensor], hidden: Tensor, newest: Tensor) -> tuple[Tensor, Tensor]:
        drafted = truth[:, : newest.shape[1]].clone()
        spoiled = torch.arange(draft.block) == wrong_at[: newest.shape[1], None]
        return torch.where(spoiled, drafted + 1, drafted), hidden[..., 0]

    monkeypatch.setattr(draft, "greedy", guess)
    lengths = accepted_lengths(model, draft, weights, tokens)
    assert torch.equal(lengths[0], wrong_at[: lengths.shape[1]].clamp(max=draft.block))


def test_walk_takes_the_steps_of_a_speculative_loop() -> None:
    text = torch.tensor([[9] * 20 + [1] + [9] * 9])
    confirmed = torch.full((1, 24), 2)
    # From anchor 3, three tokens a step, while a whole block fits before the end token at 20.
    assert walk(text, confirmed, prompt=4, eos=1, block=5) == (4, 8)


def test_every_published_tensor_is_trained(config: ModelConfig, published: dict[str, Tensor]) -> None:
    fresh = dict(unstack(initial_weights(config, 0, CPU)))
    optional = {"image_start", "image_end", "image_newline"}
    assert set(fresh) == set(published) - optional
    assert all(fresh[name].shape == published[name].shape for name in fresh)


def test_rounding_is_what_the_checkpoint_stores(config: ModelConfig) -> None:
    from stepahead.engine.model.checkpoint.formats import fake_quantize

    generator = torch.Generator().manual_seed(0)
    for name, spec in stacked_specs(config).items():
        if not name.startswith(("layers.1.", "layers.2.", "mtp.2.")):
            continue
        value = stored_value(torch.randn(spec.shape, generator=generator), spec.kind)
        for part in value if ".experts.w" in name else [value]:
            assert torch.equal(fake_quantize(part, spec.kind).to(part.dtype), part), name
