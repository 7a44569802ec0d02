"""Random numbers depend on what is drawn and on nothing else, and are what their definition says."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.sampling import seeds

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """The definition in engine/README.md on Python's integers, which cannot overflow by accident."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def definition(seed: int, choice: int, position: int, purpose: int) -> int:
    state = mix((seed + GOLDEN) % WORD)
    for part in (choice, position, purpose):
        state = mix((state + part + GOLDEN) % WORD)
    return state


@pytest.mark.parametrize(
    "parts", [(0, 0, 0, 0), (WORD - 1, 3, 10**6, 3), (12345, 0, 1, 1), (2**63, 2**31, 0, 2)]
)
def test_keys_and_bits_follow_the_definition(parts: tuple[int, int, int, int]) -> None:
    key = seeds.key(*parts)
    assert key.tolist() == [definition(*parts)]
    for index in (0, 1, 129_279, 2**32):
        expected = mix((definition(*parts) + (index + 1) * GOLDEN) % WORD) >> 32
        assert seeds.bits(key, index).tolist() == [expected]


def test_mix_is_the_published_splitmix64() -> None:
    # The first outputs of SplitMix64 from state 1234567, as published with the generator.
    states = [(1234567 + (i + 1) * GOLDEN) % WORD for i in range(3)]
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [mix(state) for state in states] == published


def test_the_numpy_form_agrees_on_arrays_and_broadcasts() -> None:
    keys = seeds.key(7, np.arange(3)[:, None], np.arange(5), seeds.TARGET)
    assert keys.shape == (3, 5)
    assert int(keys[2, 4]) == definition(7, 2, 4, 0)


@pytest.mark.parametrize(("pattern", "expected"), [(0, 2.0**-33), (2**32 - 1, 1 - 2.0**-24), (2**31, 0.5)])
def test_uniform_stays_inside_the_open_interval(
    pattern: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "bits", lambda keys, index: np.array([pattern], dtype=np.uint64))
    value = seeds.uniform(seeds.key(0, 0, 0, 0), 0)
    assert value.dtype == np.float32
    assert value.tolist() == [pytest.approx(expected, rel=1e-7)]
    assert 0 < value[0] < 1


def test_the_only_token_left_by_a_filter_wins_whatever_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = np.full((1, 4), 2**32 - 1, dtype=np.uint64)
    monkeypatch.setattr(seeds, "bits", lambda keys, index: largest)
    logprobs = np.array([[-np.inf, -np.inf, 0.0, -np.inf]], dtype=np.float32)
    assert seeds.draw(logprobs, seeds.key(0, 0, 0, 0)).tolist() == [2]


def test_a_draw_does_not_depend_on_its_neighbours_or_on_padding() -> None:
    generator = np.random.default_rng(0)
    logprobs = generator.normal(size=(32, 50)).astype(np.float32)
    keys = seeds.key(9, 0, np.arange(32), seeds.TARGET)
    together = seeds.draw(logprobs, keys)
    alone = [int(seeds.draw(logprobs[i : i + 1], keys[i : i + 1])[0]) for i in range(32)]
    padded = np.pad(logprobs, ((0, 0), (0, 14)), constant_values=-np.inf)
    assert together.tolist() == alone == seeds.draw(padded, keys).tolist()


def test_ties_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "bits", lambda keys, index: np.full((1, 3), 77, dtype=np.uint64))
    assert seeds.draw(np.zeros((1, 3), dtype=np.float32), seeds.key(0, 0, 0, 0)).tolist() == [0]


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    count = 40_000
    keys = seeds.key(np.arange(count) % 97, 0, np.arange(count), seeds.TARGET)
    drawn = seeds.draw(np.broadcast_to(np.log(probabilities).astype(np.float32), (count, 4)), keys)
    expected = probabilities * count
    chi_squared = ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_squared < 16.3  # 3 degrees of freedom, p = 0.001; the numbers are fixed, so it cannot flicker


@pytest.mark.parametrize("field", range(4))
def test_every_part_of_a_key_matters(field: int) -> None:
    parts = [5, 6, 7, 1]
    changed = list(parts)
    changed[field] += 1
    assert seeds.key(*parts).tolist() != seeds.key(*changed).tolist()
