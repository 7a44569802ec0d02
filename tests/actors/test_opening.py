"""Opening takes a while, off the loop; whoever loses patience leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, Engine, EngineError
from stepahead.engine import backend as backends
from tests.actors.hashed_engine import open_hashed, prompt_of, until


class Closable:
    """Stands for a backend that was loaded in vain."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


async def test_an_opening_that_was_cancelled_closes_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, finish, loaded = threading.Event(), threading.Event(), Closable()

    def slow(*arguments: Any) -> Closable:
        begun.set()
        assert finish.wait(10)
        return loaded

    monkeypatch.setattr(backends, "_open", slow)
    opening = asyncio.ensure_future(_enter())
    await until(begun.is_set)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    finish.set()
    await until(loaded.closed.is_set)


async def test_an_opening_that_was_cancelled_and_fails_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, finish = threading.Event(), threading.Event()

    def failing(*arguments: Any) -> Closable:
        begun.set()
        assert finish.wait(10)
        raise LookupError("too late for anybody")

    monkeypatch.setattr(backends, "_open", failing)
    opening = asyncio.ensure_future(_enter())
    await until(begun.is_set)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    finish.set()
    await asyncio.to_thread(lambda: None)


async def _enter() -> None:
    async with Engine.open():
        pytest.fail("nothing was opened")


async def test_a_device_nobody_has_is_named() -> None:
    with pytest.raises(ConfigError, match="device='abacus'"):
        await Engine.open(device="abacus")


async def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=str(tmp_path)):
        await Engine.open(tmp_path)


def test_a_script_whose_opening_fails_leaves_no_loop() -> None:
    with pytest.raises(ConfigError), open_hashed(max_step_rows=1):
        pytest.fail("it cannot open")


def test_the_loop_of_a_script_is_closed_even_when_the_body_raises() -> None:
    kept: list[Engine] = []

    def script() -> None:
        with open_hashed() as engine:
            kept.append(engine)
            engine.generate_sync([prompt_of(3)])
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        script()
    assert kept[0]._host.loop.is_closed()


async def test_each_opening_is_an_engine_of_its_own() -> None:
    async with open_hashed() as first, open_hashed() as second:
        assert first is not second
        done = await asyncio.gather(*(engine.generate(prompt_of(5)) for engine in (first, second)))
        assert {len(completion.token_ids) > 0 for completion in done} == {True}
