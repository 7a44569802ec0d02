"""The checker sees classic mistakes, and makes the scripts that show them small."""

from __future__ import annotations

import itertools

import pytest

from .check import Verdict, check
from .generate import generate
from .mistakes import MISTAKES, Mistake, the_last_new_block_is_not_told
from .script import Client, DeviceScript, Event, Knobs, Model, Script
from .shrink import shrink

PATIENCE = 100
"""Seeds to try; most mistakes show within ten."""

PROMPT = tuple(range(2, 22))
POINTED = (
    Script(clients=(Client(prompt=PROMPT), Client(prompt=PROMPT, salt="tenant", at=0.1))),
    Script(
        knobs=Knobs(max_sequences=1),
        clients=(
            Client(prompt=PROMPT, max_tokens=30, ignore_eos=True),
            Client(prompt=(5, 6), max_tokens=50, ignore_eos=True, leave="abort", after_seconds=0.01),
        ),
    ),
    Script(
        model=Model(vocab_size=128, draft_tokens=3, draft_accuracy=1.0),
        clients=(Client(prompt=(3,), max_tokens=40, ignore_eos=True, stop=tuple("aeiou4TXyz")),),
    ),
    Script(
        model=Model(draft_tokens=3, draft_accuracy=0.8),
        knobs=Knobs(verify="adaptive"),
        device=DeviceScript(budgets=1),
        clients=tuple(
            Client(prompt=(3, 4, first), max_tokens=40, ignore_eos=True, draft_tokens=drafts)
            for first, drafts in ((5, 0), (6, None), (7, 2))
        ),
    ),
)
"""Scripts for mistakes that random ones show too rarely for a short test."""


def _first_failure() -> tuple[Script, Verdict]:
    for script in itertools.chain(POINTED, map(generate, range(PATIENCE))):
        verdict = check(script)
        if not verdict.right:
            return script, verdict
    raise AssertionError(f"{PATIENCE} workloads found nothing wrong")


@pytest.mark.parametrize("script", POINTED)
def test_pointed_scripts_are_right(script: Script) -> None:
    verdict = check(script)
    assert verdict.right, verdict.report


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_seen(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    _first_failure()


def test_a_failing_script_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    the_last_new_block_is_not_told(monkeypatch)
    script, verdict = _first_failure()
    small = shrink(script, lambda candidate: check(candidate).kind == verdict.kind)
    assert check(small).kind == verdict.kind
    assert len(small.clients) <= 1
    assert not small.events


def test_shrinking_keeps_what_matters_and_nothing_else() -> None:
    clients = tuple(
        Client(prompt=(i, i, i, i), at=float(i), max_tokens=20, temperature=1.0) for i in range(9)
    )
    script = Script(clients=clients, events=(Event(at=1.0, kind="reset"),) * 3, close_at=3.0)

    def fails(candidate: Script) -> bool:
        longest = max((len(client.prompt) for client in candidate.clients), default=0)
        return longest >= 3 and any(client.max_tokens == 20 for client in candidate.clients)

    small = shrink(script, fails)
    assert fails(small)
    assert small == Script(clients=(Client(prompt=(8, 8, 8), max_tokens=20),))
