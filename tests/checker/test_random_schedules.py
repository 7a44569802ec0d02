"""A few hundred random schedules; the command line runs thousands (`python -m tests.checker`)."""

from __future__ import annotations

import pytest

from .check import check
from .drive import drive
from .generate import generate
from .script import from_json, to_json

TOGETHER = 20


@pytest.mark.parametrize("first", range(0, 240, TOGETHER))
def test_every_client_hears_what_its_request_says_alone(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        verdict = check(generate(seed))
        assert verdict.right, f"python -m tests.checker --seeds {seed}:{seed + 1}\n{verdict.report}"


def test_a_run_is_a_function_of_its_script() -> None:
    script = generate(7)
    one, other = drive(script), drive(script)
    assert one.counts == other.counts
    assert [client.choices for client in one.heard] == [client.choices for client in other.heard]
    assert [client.ended_at for client in one.heard] == [client.ended_at for client in other.heard]


def test_a_script_survives_being_written_down() -> None:
    for seed in range(20):
        script = generate(seed)
        assert from_json(to_json(script)) == script
