"""Random requests never end in a 500: what a client sends is answered, or is the client's mistake.

The engine answers with random outputs, so the writers are in it as well: every stream is whole and every
complete response is JSON. The engine here is a script: its own refusals are tested with it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.recipe.server.options import ServerOptions

from . import output_cases, request_mutations
from .application import create_app
from .asgi_client import Answer, call
from .fake_engine import FakeEngine, Script, tokenizer
from .random_json import SCALARS, mutate
from .test_differential import many

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
ENDS = {"chat": "[DONE]", "messages": "message_stop", "responses": "response."}
PER_SEED = 4
EXTRAS: dict[str, Any] = {
    "n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": 1.5}, "stop": ["x"], "seed": 3,
    "max_tokens": 3, "max_output_tokens": 3, "user": "u", "metadata": {"user_id": "u"}, "store": True,
    "prompt_cache_key": "k", "stream": True, "presence_penalty": 1,
    "stop_sequences": ["a"], "top_k": 5,
}  # fmt: skip


def engine(rng: random.Random) -> FakeEngine:
    if rng.random() < 0.3:
        vocabulary = len(tokenizer().token_bytes.pieces)
        outputs = [Script(token_ids=[rng.randrange(vocabulary) for _ in range(9)]) for _ in range(8)]
    else:
        outputs = [Script(output_cases.text(rng)) for _ in range(8)]
    return FakeEngine(outputs)


def whole(answer: Answer, protocol: str) -> bool:
    """Whether a stream ended as streams of its protocol end."""
    name, data = answer.events()[-1]
    return str(data if protocol == "chat" else name).startswith(ENDS[protocol])


def request(rng: random.Random, protocol: str) -> Any:
    """Two in three are as a client would send them."""
    broken = rng.random() < 0.35
    body = request_mutations.case(rng, protocol)[0] if broken else request_mutations.BODIES[protocol](rng)
    body["model"] = "stepahead" if not broken or rng.random() < 0.9 else body.get("model")
    for key in rng.sample(sorted(EXTRAS), 3):
        body[key] = rng.choice(SCALARS) if broken and rng.random() < 0.4 else EXTRAS[key]
    if "top_logprobs" in body and protocol == "chat":
        body["logprobs"] = True
    return mutate(rng, body, list(EXTRAS.values())) if broken and rng.random() < 0.2 else body


@pytest.mark.parametrize("protocol", PATHS)
@many
@given(st.integers(0, 2**63))
async def test_no_request_is_answered_with_a_500(protocol: str, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(PER_SEED):
        body = request(rng, protocol)
        app = create_app(engine(rng), ServerOptions(official=rng.random() < 0.2))
        answer = await call(app, "POST", PATHS[protocol], body)
        assert answer.status in (200, 400, 404, 422), (answer, body)
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert whole(answer, protocol), (answer, body)
        else:
            assert isinstance(answer.json(), dict)
            assert answer.status == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS.values())
@given(st.one_of(st.binary(), st.text().map(str.encode), st.integers(1, 5000).map(lambda n: b"[" * n)))
async def test_no_body_is_answered_with_a_500(path: str, body: bytes) -> None:
    for raw in (
        body,
        b'{"model":"stepahead","messages":' + body + b"}",
        b'{"model":"stepahead","input":' + body,
    ):
        answer = await call(create_app(FakeEngine()), "POST", path, raw)
        assert 400 <= answer.status < 500, answer
