"""Compares what every client heard with what its request says alone, and says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepahead import FinishReason
from stepahead.engine.errors import (
    DeviceStalledError,
    EngineClosedError,
    EngineFailedError,
    InvalidParameterError,
    InvalidRequestError,
    NotFiniteError,
    QueueFullError,
    SlowReaderError,
)

from .drive import FRESH, Choice, Heard, Run
from .oracle import Told, text_of, told
from .script import Client


def judge(run: Run) -> list[str]:
    """Complaints; none if the run was right."""
    complaints = list(run.complaints)
    clients = [*run.script.clients, FRESH]
    for index, (client, heard) in enumerate(zip(clients, run.heard, strict=False)):
        who = f"client {index}" if index < len(run.script.clients) else "the fresh request at the end"
        complaints += [f"{who}: {complaint}" for complaint in _complaints(run, client, heard)]
    return complaints


def _told(run: Run, client: Client, most: Mapping[int, int] | None = None) -> tuple[Told, ...]:
    rejection = run.script.knobs.acceptance == "rejection"
    return told(run.script.model, client, run.limits, most, rejection=rejection)


def _complaints(run: Run, client: Client, heard: Heard) -> Iterator[str]:
    yield from heard.complaints
    if client.leave == "never_start":
        if heard.choices or heard.error:
            yield f"a stream that was never started said something: {heard}"
        return
    try:
        answers = _told(run, client, _wanted(client, heard))
        if client.n > run.script.knobs.queue_capacity:
            raise InvalidParameterError("n", client.n, "at most queue_capacity")
    except InvalidRequestError as error:
        if type(heard.error) is not type(error) and not (heard.left or _is_over(run, heard)):
            yield f"should be refused with {error!r}, heard {heard.error!r}"
        return
    if isinstance(heard.error, InvalidRequestError):
        yield f"was refused: {heard.error!r}"
        return
    yield from _error(run, client, heard, answers)
    for index, choice in heard.choices.items():
        for complaint in _choice(run, client, heard, choice, answers[index]):
            yield f"choice {index} {complaint}"
        if choice.usage is not None and choice.usage.cached_tokens > _most_cached(run, client):
            yield f"choice {index} found {choice.usage.cached_tokens} tokens cached that nobody had computed"
    if heard.ended:
        missing = [index for index in range(client.n) if not _has_ended(heard, index)]
        if missing:
            yield f"ended without an end of its choices {missing}"
        elif client.deadline is not None and not client.pause:
            late = heard.ended_at - (client.at + client.deadline)
            if late > 1e-6:
                yield f"ended {late:g} s after its deadline"
    elif heard.error is None and not heard.left:
        yield "neither ended nor failed nor left"


def _wanted(client: Client, heard: Heard) -> dict[int, int]:
    """Tokens to ask the oracle for, of choices that did not end well: those heard, and the one after."""
    if isinstance(heard.error, NotFiniteError):
        return {}  # whether one fails is known only at its end
    said = {
        index: len(heard.choices[index].tokens) if index in heard.choices else 0 for index in range(client.n)
    }
    good = (FinishReason.STOP, FinishReason.LENGTH)
    return {
        index: count + 1
        for index, count in said.items()
        if index not in heard.choices or heard.choices[index].reason not in good
    }


def _has_ended(heard: Heard, index: int) -> bool:
    return index in heard.choices and heard.choices[index].reason is not None


def _is_over(run: Run, heard: Heard) -> bool:
    return isinstance(heard.error, (EngineClosedError, EngineFailedError, DeviceStalledError)) and (
        _may_close(run) or bool(run.script.device.fault_at)
    )


def _may_close(run: Run) -> bool:
    return run.closed_early or any(event.kind == "drain" for event in run.script.events)


def _error(run: Run, client: Client, heard: Heard, answers: tuple[Told, ...]) -> Iterator[str]:
    error, knobs, device = heard.error, run.script.knobs, run.script.device
    if error is None:
        return
    if heard.ended:
        yield f"ended and also raised {error!r}"
    allowed = {
        EngineClosedError: _may_close(run),
        EngineFailedError: device.fault_at != "" and device.fault == "error" and run.failed,
        DeviceStalledError: device.fault_at != "" and device.fault == "hang" and run.failed,
        QueueFullError: knobs.queue_policy == "reject",
        SlowReaderError: knobs.slow_reader == "abort",
        # A row behind the end of the text may fail it as well: the step that found the end computed that row.
        NotFiniteError: any(answer.reason is None for answer in answers)
        or (run.script.model.nonfinite_rate > 0 and run.script.model.draft_tokens > 0),
    }
    if not allowed.get(type(error), False):
        yield f"raised {error!r} (cause: {error.__cause__!r})"
    if isinstance(error, QueueFullError) and heard.choices:
        yield "was refused after it had begun"


def _choice(run: Run, client: Client, heard: Heard, choice: Choice, answer: Told) -> Iterator[str]:
    count = len(choice.tokens)
    if tuple(choice.tokens) != answer.tokens[:count]:
        yield f"said {choice.tokens}, alone it says {list(answer.tokens)}"
        return
    if client.logprobs is not None:
        yield from _logprobs(client, choice, answer)
    elif choice.logprobs:
        yield "has logprobs nobody asked for"
    yield from _prompt_logprobs(client, choice, answer)
    match choice.reason:
        case None:
            if not answer.text.startswith(choice.text) and not _is_tail(choice, answer):
                yield f"shows {choice.text!r}, alone {answer.text!r}"
        case FinishReason.STOP | FinishReason.LENGTH:
            heard_whole = (choice.reason, tuple(choice.tokens), choice.text)
            if heard_whole != (answer.reason, answer.tokens, answer.text):
                yield f"ended with {heard_whole}, alone with {(answer.reason, answer.tokens, answer.text)}"
        case FinishReason.ABORT:
            if client.leave != "abort" and not _has(run, "abort_all"):
                yield "was aborted by nobody"
            yield from _cut_text(client, choice)
        case FinishReason.DEADLINE:
            if client.deadline is None:
                yield "has no deadline that could pass"
            yield from _cut_text(client, choice)
    yield from _usage(client, choice, answer)


def _prompt_logprobs(client: Client, choice: Choice, answer: Told) -> Iterator[str]:
    heard = choice.prompt_logprobs
    whole = bool(choice.tokens) or choice.reason in (FinishReason.STOP, FinishReason.LENGTH)
    if heard is None and whole and answer.prompt:
        yield "has no prompt logprobs"
    if heard is not None and (client.prompt_logprobs is None or heard != answer.prompt):
        yield f"has prompt logprobs {heard}, alone {answer.prompt}"


def _is_tail(choice: Choice, answer: Told) -> bool:
    """Half a character that would have been completed by tokens still unheard."""
    return choice.text.rstrip("�") == answer.text[: len(choice.text.rstrip("�"))]


def _cut_text(client: Client, choice: Choice) -> Iterator[str]:
    """A stream that was cut shows the text of every token it told."""
    whole = text_of(tuple(choice.tokens)) if client.detokenize else ""
    if choice.text != whole:
        yield f"was cut after {choice.tokens} and shows {choice.text!r} instead of {whole!r}"


def _logprobs(client: Client, choice: Choice, answer: Told) -> Iterator[str]:
    count = len(choice.tokens)
    heard = [(entry.token_id, entry.logprob, entry.top) for entry in choice.logprobs]
    expected = list(zip(answer.tokens, answer.logprobs, answer.top, strict=True))[:count]
    if heard != expected:
        yield f"has logprobs {heard}, alone {expected}"


def _most_cached(run: Run, client: Client) -> int:
    """Tokens of its prompt that some request under the same salt can have computed."""
    most = len(client.prompt) if client.n > 1 else 0
    for other in run.script.clients:
        if other is not client and other.salt == client.salt and most < len(client.prompt):
            common = _common(client.prompt, other.prompt)
            most = max(most, common)
            if common == len(other.prompt):
                try:
                    answers = _told(run, other)
                except InvalidRequestError:
                    continue
                texts = (other.prompt + answer.sampled for answer in answers)
                most = max(most, *(_common(client.prompt, text) for text in texts))
    return most


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _usage(client: Client, choice: Choice, answer: Told) -> Iterator[str]:
    usage = choice.usage
    if usage is None:
        return
    finished = choice.reason in (FinishReason.STOP, FinishReason.LENGTH)
    checks = {
        "prompt_tokens": usage.prompt_tokens == len(client.prompt),
        "cached_tokens": 0 <= usage.cached_tokens < len(client.prompt),
        "output_tokens": not finished or usage.output_tokens == answer.output_tokens,
        "output_tokens of a cut stream": finished or usage.output_tokens == len(choice.tokens),
        "accepted_tokens": 0 <= usage.accepted_tokens <= usage.drafted_tokens,
        "accepted_by_position": sum(usage.accepted_by_position) == usage.accepted_tokens,
        "drafted_tokens": client.draft_tokens is None
        or usage.drafted_tokens <= client.draft_tokens * usage.decode_steps,
        "first_token_seconds": (usage.first_token_seconds is None) == (usage.output_tokens == 0),
        "queue_seconds": usage.queue_seconds >= 0,
    }
    wrong = [name for name, right in checks.items() if not right]
    if wrong:
        yield f"has a wrong usage in {wrong}: {usage}"


def _has(run: Run, kind: str) -> bool:
    return any(event.kind == kind for event in run.script.events)
