"""The HTTP application: an ASGI app to mount in one's own, or to serve with uvicorn.

    async with Engine.open() as engine:
        app = create_app(engine)

It lives in the engine's loop and owns nothing: the engine is opened and closed by whoever mounts the app. It
answers OpenAI's Chat Completions and Responses and Anthropic's Messages, and says how the engine is doing.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from .server import asgi
from .server.asgi import ClientGoneError, EventStream, Receive, Scope, Send
from .server.endpoints import ChatExchange, Exchange, MessagesExchange, ResponsesExchange
from .server.engine_like import EngineLike
from .server.errors import HttpError, as_http
from .server.metrics import HttpCounts, exposition
from .server.options import ServerOptions
from .server.serving import Serving
from .server.store import ResponseStore

Accept = Callable[[bytes], Awaitable[Exchange]]


def create_app(engine: EngineLike, options: ServerOptions | None = None) -> Starlette:
    """An ASGI application over an open engine. Create and run it in the engine's loop.

    Prepares the vocabulary, which takes up to half a second: create it before there is anything to serve.
    Raises `ValueError` for an engine without a tokenizer.
    """
    application = Application(engine, options or ServerOptions())
    return _Starlette(routes=application.routes())


class _Starlette(Starlette):
    """Without Starlette's own two layers: they wrap every `send`, and endpoints here answer their errors."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self._answer
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.router(scope, receive, send)
        except HTTPException as error:  # of the router, before anything is sent: no such path or method
            await asgi.send_error(send, HttpError(error.status_code, error.detail, "not_found_error"))


class Application:
    """The endpoints and what they share."""

    def __init__(self, engine: EngineLike, options: ServerOptions) -> None:
        self._options = options
        self._serving = Serving(engine, options)
        self._store = ResponseStore(options.stored_responses, options.stored_characters)
        self._counts = HttpCounts()
        self._keys = tuple(key.encode() for key in options.api_keys)
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        serving, store = self._serving, self._store

        async def accept_responses(raw: bytes) -> Exchange:
            return await ResponsesExchange.accept(serving, raw, store)

        posts: dict[str, Accept] = {
            "/v1/chat/completions": lambda raw: ChatExchange.accept(serving, raw),
            "/v1/messages": lambda raw: MessagesExchange.accept(serving, raw),
            "/v1/responses": accept_responses,
        }
        gets = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/v1/responses/{id}": self._stored_response,
        }
        return [
            *(Route(path, Generating(self, accept), methods=["POST"]) for path, accept in posts.items()),
            *(Route(path, Endpoint(self, answer), methods=["GET"]) for path, answer in gets.items()),
            Route("/v1/messages/count_tokens", Endpoint(self, self._count_tokens), methods=["POST"]),
            Route("/health", Endpoint(self, self._health, is_open=True), methods=["GET"]),
            Route("/metrics", Endpoint(self, self._metrics, is_open=True), methods=["GET"]),
        ]

    def check_key(self, scope: Scope) -> None:
        """Raises `HttpError` 401. All keys are compared, each in constant time."""
        if not self._keys:
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            elif name == b"x-api-key":
                given = given or value.strip()
        if not sum([hmac.compare_digest(given, key) for key in self._keys]):
            raise HttpError(401, "a valid API key is required", "authentication_error")

    @contextlib.contextmanager
    def slot(self) -> Any:
        """One of the requests being answered. Raises `HttpError` 503 when there are too many."""
        if self._counts.running >= self._options.max_concurrent_requests:
            raise HttpError(503, "too many requests are being answered", "overloaded_error", retry_after=1)
        self._counts.running += 1
        try:
            yield
        finally:
            self._counts.running -= 1

    async def generate(self, accept: Accept, receive: Receive, send: Send) -> None:
        """One request, from its body to its last byte."""
        raw = await asgi.read_body(receive, self._options.max_body_bytes)
        with self.slot():
            exchange = await accept(raw)
            await exchange.start(self._serving)
            if exchange.request.stream:
                events = EventStream(receive, send, self._options.keep_alive_seconds, exchange.silence)
                await events.run(exchange.stream)
            else:
                await asgi.send_json(send, 200, await asgi.while_connected(exchange.read(), receive))

    def count(self, path: str, status: int) -> None:
        self._counts.add(path, status)

    # Small answers.

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        data = [self._model_body(name) for name in self._options.models]
        await asgi.send_json(send, 200, {"object": "list", "data": data, "has_more": False})

    def _model_body(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": self._created,
            "owned_by": "stepahead",
        }

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        if name not in self._options.models:
            raise HttpError(404, f"there is no model named {name}", "not_found_error")
        await asgi.send_json(send, 200, self._model_body(name))

    async def _stored_response(self, scope: Scope, receive: Receive, send: Send) -> None:
        stored = self._store.get(scope["path_params"]["id"])
        if stored is None:
            raise HttpError(404, "there is no such response", "not_found_error")
        await asgi.send_json(send, 200, stored.body)

    async def _count_tokens(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await asgi.read_body(receive, self._options.max_body_bytes)
        exchange = await MessagesExchange.accept(self._serving, raw)
        await asgi.send_json(send, 200, {"input_tokens": exchange.prompt.tokens})

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        health = self._serving.engine.health()
        await asgi.send_json(send, 200 if health.ok else 503, msgspec.to_builtins(health))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        content_type, text = exposition(self._serving.engine, self._counts)
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


class Endpoint:
    """A small answer as an ASGI application, with errors as answers. `is_open`: no key needed."""

    def __init__(
        self,
        application: Application,
        answer: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        is_open: bool = False,
    ) -> None:
        self._application, self._answer, self._is_open = application, answer, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watched = _Watched(send)
        try:
            if not self._is_open:
                self._application.check_key(scope)
            await self._answer(scope, receive, watched)
        except ClientGoneError:
            watched.status = 499  # nobody is there to read it; the metrics are
        except Exception as error:
            if watched.status:
                raise  # half an answer was sent; the server closes the connection
            await asgi.send_error(watched, as_http(error))
        finally:
            self._application.count(
                scope["route"].path if "route" in scope else scope["path"], watched.status
            )


class Generating(Endpoint):
    """A generating endpoint."""

    def __init__(self, application: Application, accept: Accept) -> None:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await application.generate(accept, receive, send)

        super().__init__(application, answer)


class _Watched:
    """A send that remembers the status. No coroutine of its own: every chunk passes through it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    def __call__(self, message: asgi.Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)
