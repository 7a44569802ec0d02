"""Engram hash geometry: the published check values (model_spec 2.11, 7.2)."""

from __future__ import annotations

from stepahead.engine.model.v41.config import parse_config
from stepahead.engine.model.v41.engram_tables import engram_tables

from .model_documents import nano_document, real_document, tiny_document


def test_published_tables() -> None:
    config = parse_config(real_document())
    first, second = engram_tables(config)
    assert (first.layer_id, second.layer_id) == (1, 14)
    assert first.primes[:2] == (16000057, 16000079)
    assert second.primes[0] == 16000477
    assert (first.rows, second.rows) == config.engram_num_embeddings == (384006168, 384016682)
    assert first.multipliers == (76632096046245, 4839876093313, 35959672319349, 73987337458391)
    assert second.multipliers == (67716810739261, 51510806800915, 30921347202721, 82619226485591)
    assert len(set(first.primes + second.primes)) == 48


def test_nano_tables() -> None:
    first, second = engram_tables(parse_config(nano_document()))
    assert first.primes == (1009, 1013, 1019, 1021, 1031, 1033)
    assert second.primes == (1039, 1049, 1051, 1061, 1063, 1069)
    assert first.offsets == (0, 1009, 2022, 3041, 4062, 5093)
    assert first.offsets[-1] + first.primes[-1] == first.rows == 6126
    assert second.rows == 6332
    assert first.multipliers == (14831304026200453, 936705081716061, 6959601268494069, 14319439928568407)
    assert second.multipliers == (15920565596405625, 975009545214551, 14254820516660309, 3668506406680991)


def test_no_id_times_a_multiplier_overflows() -> None:
    for document, ids in ((real_document(), 99092), (nano_document(), 512)):
        for table in engram_tables(parse_config(document)):
            assert all(0 < m * (ids - 1) < 2**63 and m % 2 == 1 for m in table.multipliers)


def test_a_model_without_memory_has_no_tables() -> None:
    assert engram_tables(parse_config(tiny_document())) == ()
