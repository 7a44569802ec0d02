"""The list of checkpoint tensors agrees with the published counts."""

from __future__ import annotations

from math import prod

import msgspec
import pytest

from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.storage import (
    StorageKind,
    scale_name,
    scale_shape,
    stored_parts,
    stored_tensor_count,
)
from stepahead.engine.model.v41.config import parse_config

from .model_documents import nano_document, real_document


def test_the_real_model_has_the_published_number_of_tensors() -> None:
    assert stored_tensor_count(tensor_specs(parse_config(real_document()))) == 96_085


def test_the_nano_model_has_the_specified_tensors_and_parameters() -> None:
    specs = tensor_specs(parse_config(nano_document()))
    required = {name: spec for name, spec in specs.items() if not spec.optional}
    assert set(specs) - set(required) == {"image_start", "image_end", "image_newline"}
    assert stored_tensor_count(required) == 1_542
    assert sum(prod(spec.shape) for spec in required.values()) == 13_594_518


def test_image_vectors_are_required_with_a_vision_tower() -> None:
    specs = tensor_specs(parse_config(nano_document(vision=True)))
    assert not any(spec.optional for spec in specs.values())
    patch = specs["vision.patch_embed.proj.weight"]
    assert (patch.shape, patch.other_shape) == ((64, 588), (64, 3, 14, 14))


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"engram_layer_ids": ()}, "engram."),
        ({"num_nextn_predict_layers": 0, "compress_ratios": (0, 0, 2, 2, 2, 1, 1, 1, 1, 1)}, "mtp."),
    ],
)
def test_a_part_that_is_off_has_no_tensors(changes: dict[str, object], absent: str) -> None:
    config = msgspec.structs.replace(parse_config(nano_document()), **changes)
    assert not [name for name in tensor_specs(config) if absent in name]


def test_only_ratios_above_one_have_a_gate() -> None:
    specs = tensor_specs(parse_config(nano_document()))
    gated = [name for name in specs if name.endswith("compressor.wgate.weight")]
    assert gated == ["layers.2.attn.compressor.wgate.weight", "layers.4.attn.compressor.wgate.weight"]


def test_reindex_layers_have_a_query_and_no_key() -> None:
    specs = tensor_specs(parse_config(nano_document()))
    assert "layers.7.attn.indexer.wq_b.weight" in specs
    assert "layers.7.attn.indexer.wk.weight" not in specs


def test_shapes_of_stored_parts() -> None:
    specs = tensor_specs(parse_config(real_document()))
    published = {
        "layers.0.ffn.experts.0.w1.weight": ((2304, 2560), (2304, 160)),
        "layers.0.ffn.experts.0.w2.weight": ((5120, 1152), (5120, 72)),
        "layers.1.engram.wkv.weight": ((25600, 6144), (800, 192)),
        "layers.1.engram.embed.weight": ((384006168, 256), (384006168, 8)),
    }
    for name, shapes in published.items():
        payload, scales = stored_parts(name, specs[name])
        assert (payload.shape, scales.shape) == shapes
        assert scales.name == scale_name(name) == name.replace(".weight", ".scale")


def test_partial_last_blocks_have_a_scale() -> None:
    assert scale_shape((33, 95), StorageKind.FP8_BLOCK) == (2, 3)
