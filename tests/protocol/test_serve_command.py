"""`stepahead serve`, as a process: it says where it listens, answers, and ends at the first Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from stepahead.engine import __main__ as command_line
from stepahead.engine.commands import serve

pytest.importorskip("uvicorn")


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "stepahead", "serve", "--port", "0", "--no-thinking", "--name", "little"]
    environment = os.environ | {"STEPAHEAD_API_KEYS": "one,two"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()


def ask(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Authorization": "Bearer two"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_server_answers_until_it_is_interrupted(server: subprocess.Popen[str]) -> None:
    assert server.stderr is not None
    line = server.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
    assert found is not None, line + server.stderr.read()
    address = found[0]
    assert [model["id"] for model in ask(address, "/models")["data"]] == ["little"]
    messages = [{"role": "user", "content": "Hello"}]
    answer = ask(address, "/chat/completions", {"model": "little", "messages": messages, "max_tokens": 4})
    assert "reasoning_content" not in answer["choices"][0]["message"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address + "/models", timeout=60)
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=30) == 0
    assert server.stderr.read() == ""


def test_an_address_in_use_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoEngine:
        @staticmethod
        def open(*arguments: Any, **options: Any) -> Any:
            from contextlib import nullcontext

            from .fake_engine import FakeEngine

            return nullcontext(FakeEngine())

    monkeypatch.setattr(serve, "Engine", NoEngine)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command_line.main(["serve", "--port", str(port)]) == 1
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err
