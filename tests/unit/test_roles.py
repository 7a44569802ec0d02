"""The duties of every layer of the published model and of the nano model (model_spec 1.6, 7.1)."""

from __future__ import annotations

from stepahead.engine.model.v41.config import parse_config
from stepahead.engine.model.v41.roles import LayerRole, Selection, layer_roles

from .model_documents import nano_document, real_document, tiny_document

REAL = layer_roles(parse_config(real_document()))
NANO = layer_roles(parse_config(nano_document()))


def layers(roles: tuple[LayerRole, ...], flag: str) -> list[int]:
    return [role.layer_id for role in roles if getattr(role, flag)]


def selections(roles: tuple[LayerRole, ...], selection: Selection) -> list[int]:
    return [role.layer_id for role in roles if role.selection is selection]


def test_selections_of_the_published_model() -> None:
    full, reindex = [2, 8, 14, 20], [24, 28, 32, 36]
    assert selections(REAL, Selection.WINDOW) == [0, 1, 40, 41, 42]
    assert selections(REAL, Selection.FULL) == full
    assert selections(REAL, Selection.REINDEX) == reindex
    assert selections(REAL, Selection.REUSE) == [i for i in range(2, 40) if i not in full + reindex]


def test_sources_of_the_published_model() -> None:
    kv = {**dict.fromkeys(range(2, 8), 2), **dict.fromkeys(range(8, 14), 8)}
    kv |= {**dict.fromkeys(range(14, 20), 14), **dict.fromkeys(range(20, 40), 20)}
    for role in REAL[2:40]:
        assert role.kv_source == role.index_k_source == kv[role.layer_id]
        top_k = role.layer_id // 4 * 4 if role.layer_id >= 20 else kv[role.layer_id]
        assert role.index_source == top_k
    for role in (*REAL[:2], *REAL[40:]):
        assert role.kv_source is role.index_k_source is role.index_source is None


def test_duties_of_the_published_model() -> None:
    assert layers(REAL, "is_kv_source") == layers(REAL, "is_index_k_source") == [2, 8, 14, 20]
    assert layers(REAL, "is_index_source") == [2, 8, 14, 20, 24, 28, 32, 36]
    assert layers(REAL, "is_candidate_source") == [20]
    assert layers(REAL, "uses_candidates") == [24, 28, 32, 36]
    assert layers(REAL, "has_engram") == [1, 14]
    assert layers(REAL, "is_consumer") == list(range(20, 43))
    assert layers(REAL, "feeds_draft") == [37, 38, 39]
    assert layers(REAL, "is_draft") == [40, 41, 42]


def test_roles_of_the_nano_model() -> None:
    window, full, reuse, reindex = Selection.WINDOW, Selection.FULL, Selection.REUSE, Selection.REINDEX
    trunk = [window, window, full, reuse, full, full, reuse, reindex, reuse, reuse]
    assert [role.selection for role in NANO] == [*trunk, window, window, window]
    assert layers(NANO, "has_engram") == [1, 4]
    assert layers(NANO, "uses_candidates") == [7]
    assert layers(NANO, "feeds_draft") == [7, 8, 9]
    assert [role.ratio for role in NANO] == [0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0]


def test_a_layer_may_own_index_keys_without_owning_key_values() -> None:
    document = nano_document()
    document["text_config"]["index_k_source_layer_ids"] = [2, 4, 5, 7]
    role = layer_roles(parse_config(document))[7]
    assert (role.kv_source, role.index_k_source, role.selection) == (5, 7, Selection.FULL)


def test_a_model_without_candidates_has_no_candidate_duties() -> None:
    roles = layer_roles(parse_config(tiny_document()))
    assert not layers(roles, "is_candidate_source")
    assert not layers(roles, "uses_candidates")
