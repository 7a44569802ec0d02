"""Trap A11: programs that leave early, raise, or are interrupted end at once, quietly, with their own error.

Each test runs a small program as an embedder would, with every warning an error, and watches it from outside.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = """
import asyncio
import sys
import threading
import types

sys.modules["torch"] = types.SimpleNamespace(set_num_threads=lambda count: None)  # importing it takes seconds

from stepahead import SamplingParams
from tests.actors.hashed_engine import open_hashed, open_on_cpu, prompt_of

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

def leaving():
    print("leaving", flush=True)
"""


class Ended:
    """How a program ended, and how long after it said that it was leaving (or was interrupted)."""

    def __init__(self, process: subprocess.Popen[str], begun: float) -> None:
        self.output, self.errors = process.communicate(timeout=30)
        self.seconds = time.perf_counter() - begun
        self.code = process.returncode


def run(program: str, *, interrupt: bool = False) -> Ended:
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", HEADER + textwrap.dedent(program)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "leaving\n":
        pytest.fail(f"the program did not come that far: {process.communicate(timeout=30)[1]}")
    if interrupt:
        process.send_signal(signal.SIGINT)
    return Ended(process, time.perf_counter())


@pytest.mark.slow
@pytest.mark.parametrize("open_engine", ["open_hashed()", "open_on_cpu()"])
def test_a11_leaving_with_an_unfinished_stream(open_engine: str) -> None:
    ended = run(f"""
        async def main():
            async with {open_engine} as engine:
                finished = [d async for d in engine.stream(prompt_of(9), SamplingParams(max_tokens=3))]
                unfinished = engine.stream(prompt_of(20), LONG)
                await anext(unfinished)
                leaving()
        asyncio.run(main())
    """)
    assert (ended.code, ended.errors) == (0, "")
    assert ended.seconds < 1


@pytest.mark.slow
def test_a11_leaving_without_closing() -> None:
    """The loop cancels what is left; the device's thread must end as well."""
    ended = run("""
        async def main():
            engine = await open_on_cpu()
            unfinished = engine.stream(prompt_of(20), LONG)
            await anext(unfinished)
            leaving()
        asyncio.run(main())
        assert threading.active_count() == 1
    """)
    assert (ended.code, ended.errors) == (0, "")
    assert ended.seconds < 1


@pytest.mark.slow
def test_a11_an_exception_in_the_body_is_the_one_shown() -> None:
    ended = run("""
        async def main():
            async with open_on_cpu() as engine:
                async for delta in engine.stream(prompt_of(20), LONG):
                    leaving()
                    raise LookupError("mine")
        asyncio.run(main())
    """)
    assert ended.code == 1
    assert ended.errors.rstrip().endswith("LookupError: mine")
    assert ended.errors.count("Traceback") == 1
    assert "Warning" not in ended.errors
    assert ended.seconds < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "open_engine", ["open_hashed(latency=lambda label: 10.0)", "open_on_cpu(seconds=0.2)"]
)
@pytest.mark.parametrize("entry", ["asyncio.run(main())", "import uvloop; uvloop.run(main())"])
def test_a11_an_interrupt_in_the_middle_of_a_prefill(open_engine: str, entry: str) -> None:
    ended = run(
        f"""
        async def main():
            async with {open_engine} as engine:
                reading = asyncio.create_task(engine.generate(prompt_of(400), LONG))
                while not engine.stats().running:
                    await asyncio.sleep(0.001)
                leaving()
                await reading
        {entry}
        """,
        interrupt=True,
    )
    assert ended.errors.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in ended.errors
    assert "Warning" not in ended.errors
    assert "Exception ignored" not in ended.errors
    assert ended.seconds < 1


@pytest.mark.slow
def test_a11_an_interrupt_of_a_script_without_a_loop() -> None:
    ended = run("""
        import os, signal

        def interrupt():
            leaving()
            os.kill(os.getpid(), signal.SIGINT)

        prompts = [prompt_of(400)] * 4
        with open_on_cpu(seconds=0.1) as engine:
            threading.Timer(0.3, interrupt).start()
            engine.generate_sync(prompts, LONG)
    """)
    assert ended.errors.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in ended.errors
    assert "Warning" not in ended.errors
    assert ended.seconds < 1


@pytest.mark.slow
def test_a10_importing_changes_neither_policy_nor_signal_handlers() -> None:
    ended = run("""
        import signal
        leaving()
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        policy = asyncio.get_event_loop_policy()
        threads = threading.enumerate()
        for name in [name for name in sys.modules if name.partition(".")[0] == "stepahead"]:
            del sys.modules[name]
        import stepahead
        assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]
        assert handlers[signal.SIGINT - 1] is signal.default_int_handler
        assert policy is asyncio.get_event_loop_policy()
        assert threads == threading.enumerate()
    """)
    assert (ended.code, ended.errors) == (0, "")


def test_a10_importing_the_face_does_not_import_torch() -> None:
    program = "import sys, stepahead; sys.exit('torch' in sys.modules or 'uvloop' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
