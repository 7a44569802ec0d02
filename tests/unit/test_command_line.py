"""`python -m stepahead`: the default command, its output, and how it ends."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stepahead
from stepahead.engine import __main__ as command_line
from stepahead.engine.commands import generate as command
from stepahead.engine.commands.generate import BUILT_IN_MODEL
from stepahead.engine.errors import EmptyPromptError, PromptTooLongError, TokenOutOfVocabularyError
from stepahead.engine.model import opening, plain_loop
from stepahead.engine.model.opening import ModelFilesError, OpenModel, open_model
from stepahead.engine.model.plain_loop import generate
from stepahead.engine.text.chat import chat_tokens

PROMPT = "Once upon a time"
RANDOM = ["--random-weights", "--temperature", "0"]


@pytest.fixture(scope="module")
def opened() -> OpenModel:
    """The shipped configuration and vocabulary with random weights."""
    return open_model(BUILT_IN_MODEL, random_weights=True)


@pytest.fixture
def reuse(opened: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find the model already in memory."""
    monkeypatch.setattr(opening, "load_model", lambda *args, **options: opened.model)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.usefixtures("reuse")
def test_a_bare_prompt_is_continued(opened: OpenModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([PROMPT, *RANDOM, "--max-tokens", "6"]) == 0
    ids = generate(opened.model, opened.tokenizer.encode(PROMPT), max_tokens=6)
    assert capsys.readouterr().out == PROMPT + opened.tokenizer.decode(ids) + "\n"


@pytest.mark.usefixtures("reuse")
def test_options_may_come_first_and_the_name_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = set()
    for order in ([*RANDOM, "--max-tokens", "3", PROMPT], ["generate", PROMPT, *RANDOM, "--max-tokens", "3"]):
        assert command_line.main(order) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


@pytest.mark.usefixtures("reuse")
def test_a_stop_string_ends_the_text_before_it(opened: OpenModel, capsys: pytest.CaptureFixture[str]) -> None:
    text = opened.tokenizer.decode(generate(opened.model, opened.tokenizer.encode(PROMPT), max_tokens=8))
    stop = text[5:8]
    assert command_line.main([PROMPT, *RANDOM, "--max-tokens", "8", "--stop", stop]) == 0
    assert capsys.readouterr().out == PROMPT + text[: text.index(stop)] + "\n"


@pytest.mark.usefixtures("reuse")
def test_chat_prints_the_answer_alone(opened: OpenModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--chat", PROMPT, *RANDOM, "--max-tokens", "4"]) == 0
    message = {"role": "user", "content": PROMPT}
    ids = generate(opened.model, chat_tokens(opened.tokenizer, [message]), max_tokens=4)
    assert capsys.readouterr().out == opened.tokenizer.decode(ids) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--model", "/nowhere"], "cannot open a model in /nowhere"),
        (["x", "--max-tokens", "-1"], "--max-tokens=-1 is not allowed: 0 or more"),
        (["x", "--temperature", "nan"], "--temperature=nan is not allowed"),
        (["x", "--device", "abacus"], "EngineConfig.device='abacus' is not allowed: 'cpu', 'cuda'"),
    ],
)
def test_an_error_of_ours_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"stepahead: {message}")
    assert error.count("\n") == 1


def test_ctrl_c_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command_line.main([PROMPT]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_ends_without_a_traceback() -> None:
    code = (
        "import os, sys\n"
        "from stepahead.engine.commands import generate\n"
        "from stepahead.engine.__main__ import main\n"
        "read, write = os.pipe(); os.dup2(write, 1); os.close(write); os.close(read)\n"
        "generate.run = lambda arguments: print('text', flush=True)\n"
        "sys.exit(main(['x']))"
    )
    done = run_python(code)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "from stepahead.engine.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('torch' in sys.modules)"
    )
    done = run_python(code, "--help")
    assert done.stdout.splitlines()[-1] == "False"
    assert "generate" in done.stdout
    assert run_python(code, "--version").stdout.splitlines()[0] == f"stepahead {stepahead.__version__}"


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([])
    assert ended.value.code == 0
    assert "Example: stepahead" in capsys.readouterr().out


def test_the_loop_does_not_depend_on_how_the_prompt_is_cut(
    opened: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = opened.tokenizer.encode(PROMPT * 12)
    whole = list(generate(opened.model, prompt, max_tokens=8))
    monkeypatch.setattr(plain_loop, "CHUNK_ROWS", 7)
    assert list(generate(opened.model, prompt, max_tokens=8)) == whole
    fed = [*prompt, *whole[:3]]
    assert list(generate(opened.model, fed, max_tokens=5)) == whole[3:]


def test_a_seed_fixes_the_choices(opened: OpenModel) -> None:
    prompt = opened.tokenizer.encode(PROMPT)

    def drawn(seed: int) -> list[int]:
        return list(generate(opened.model, prompt, max_tokens=8, temperature=1.0, seed=seed))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_end_token_ends_the_text_and_is_not_yielded(
    opened: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, eos = opened.tokenizer.encode(PROMPT), opened.model.config.eos_token_id
    choices = iter([50, 51, eos, 52])
    monkeypatch.setattr(plain_loop, "_choose", lambda *_: next(choices))
    assert list(generate(opened.model, prompt, max_tokens=10)) == [50, 51]
    assert list(generate(opened.model, prompt, max_tokens=0)) == []


def test_impossible_prompts_are_refused(opened: OpenModel) -> None:
    limit, vocab = opened.config.max_position_embeddings, opened.config.vocab_size
    with pytest.raises(EmptyPromptError):
        next(generate(opened.model, [], max_tokens=1))
    with pytest.raises(TokenOutOfVocabularyError, match=f"{vocab} at position 1"):
        next(generate(opened.model, [0, vocab], max_tokens=1))
    with pytest.raises(PromptTooLongError):
        next(generate(opened.model, [0] * limit, max_tokens=1))


def test_what_is_missing_in_a_model_folder_is_named(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        with pytest.raises(ModelFilesError, match=name):
            open_model(tmp_path)
        (tmp_path / name).write_bytes((BUILT_IN_MODEL / name).read_bytes())
    with pytest.raises(ModelFilesError, match="safetensors"):
        open_model(tmp_path)


def test_loading_reports_every_tensor() -> None:
    seen: list[tuple[int, int]] = []
    opened = open_model(
        BUILT_IN_MODEL,
        random_weights=True,
        dtype=torch.bfloat16,
        on_tensor=lambda *counts: seen.append(counts),
    )
    assert opened.model.weights.embed.dtype == torch.bfloat16
    done, total = seen[-1]
    assert seen == [(count, total) for count in range(1, done + 1)]
    assert total - 3 <= done <= total  # the three image vectors are counted and, without a tower, not read
