"""The three generating endpoints: what differs between them on the way of a request."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from ..conversation import Message
from ..errors import ConversionError
from ..protocols.chat.convert import convert as convert_chat
from ..protocols.chat.writer import ChatHeader, ChatUsage, ChatWriter, response_body
from ..protocols.events import DONE, ServerEvent, Writer
from ..protocols.messages.convert import convert as convert_messages
from ..protocols.messages.writer import MessagesWriter
from ..protocols.request import ConversationRequest
from ..protocols.responses.convert import ResponsesRequest, convert_with_body
from ..protocols.responses.writer import ResponsesWriter
from ..stream import OutputStream
from .answer import Answer, Write
from .errors import HttpError, as_http, error_body
from .serving import Prompt, Serving
from .store import ResponseStore


class Exchange:
    """One request of one protocol, converted, encoded and accepted by the engine."""

    silence = b": keep-alive\n\n"
    """Sent when a stream has nothing to say: a comment, which clients skip."""

    def __init__(self, request: ConversationRequest, prompt: Prompt) -> None:
        self.request, self.prompt = request, prompt
        self.answer: Answer | None = None

    def writers(self) -> Sequence[Writer]:
        """One for each choice."""
        raise NotImplementedError

    def response(self) -> dict[str, Any]:
        """The complete response, once the answer is read."""
        raise NotImplementedError

    def finished(self) -> None:
        """The answer was read to its end."""

    async def start(self, serving: Serving) -> None:
        """Raises the engine's errors for a request it cannot take."""
        inference = self.request.inference
        top_logprobs = (inference.top_logprobs or 0) if inference.logprobs else None
        outputs = [
            OutputStream(
                writer, self.request.parsing, serving.vocabulary, merge=True, top_logprobs=top_logprobs
            )
            for writer in self.writers()
        ]
        stream = await serving.open(self.request, self.prompt)
        self.answer = Answer(stream, outputs, self.prompt.tokens)

    async def read(self) -> dict[str, Any]:
        """The complete response."""
        answer = self._started()
        answer.begin()
        await answer.run(_no_reader)
        self.finished()
        return self.response()

    async def stream(self, write: Write) -> None:
        """The event stream. An error in the middle is its last event: the status was sent long ago."""
        answer = self._started()
        try:
            await write(answer.begin())
            await answer.run(write)
        except Exception as error:
            await write(self.error_frame(as_http(error)))
            return
        self.finished()
        if last := self.last_frame():
            await write(last)

    def _started(self) -> Answer:
        if self.answer is None:
            raise RuntimeError("the exchange was not started")
        return self.answer

    def error_frame(self, error: HttpError) -> bytes:
        return ServerEvent("error", error_body(error)).frame()

    def last_frame(self) -> bytes:
        return b""


async def _no_reader(frame: bytes) -> None:
    """A complete response is read from the writers."""


class ChatExchange(Exchange):
    @staticmethod
    async def accept(serving: Serving, raw: bytes) -> ChatExchange:
        request = await serving.convert(lambda body: convert_chat(body, serving.conversion), raw)
        return ChatExchange(request, await serving.prompt(request))

    def __init__(self, request: ConversationRequest, prompt: Prompt) -> None:
        super().__init__(request, prompt)
        self._header = ChatHeader(f"chatcmpl-{secrets.token_hex(16)}", request.model, int(time.time()))
        self._usage = ChatUsage(request.inference.n)
        start = request.parsing.thinking_start
        self._writers = [
            ChatWriter(
                self._header,
                start,
                usage_on_every_chunk=request.include_usage or not request.stream,
                index=index,
                shared_usage=self._usage,
            )
            for index in range(request.inference.n)
        ]

    def writers(self) -> Sequence[Writer]:
        return self._writers

    def response(self) -> dict[str, Any]:
        choices = [writer.choice() for writer in self._writers]
        return response_body(self._header, choices, self._usage.total, None)

    def error_frame(self, error: HttpError) -> bytes:
        return ServerEvent(None, error_body(error)).frame()

    def last_frame(self) -> bytes:
        return DONE


class MessagesExchange(Exchange):
    silence = b'event: ping\ndata: {"type":"ping"}\n\n'

    @staticmethod
    async def accept(serving: Serving, raw: bytes) -> MessagesExchange:
        request = await serving.convert(lambda body: convert_messages(body, serving.conversion), raw)
        return MessagesExchange(request, await serving.prompt(request))

    def __init__(self, request: ConversationRequest, prompt: Prompt) -> None:
        super().__init__(request, prompt)
        thinking = request.conversation.thinking_mode
        self._writer = MessagesWriter(f"msg_{secrets.token_hex(12)}", request.model, thinking)

    def writers(self) -> Sequence[Writer]:
        return [self._writer]

    def response(self) -> dict[str, Any]:
        return self._writer.response()


class ResponsesExchange(Exchange):
    @staticmethod
    async def accept(serving: Serving, raw: bytes, store: ResponseStore) -> ResponsesExchange:
        def history(response_id: str) -> tuple[Message, ...]:
            stored = store.get(response_id)
            if stored is None:
                raise ConversionError(
                    f"Previous response with id '{response_id}' not found.",
                    kind="previous_response_not_found",
                    parameter="previous_response_id",
                )
            return stored.messages

        options = serving.conversion
        converted = await serving.convert(lambda body: convert_with_body(body, options, history), raw)
        return ResponsesExchange(converted, await serving.prompt(converted.request), store)

    def __init__(self, converted: ResponsesRequest, prompt: Prompt, store: ResponseStore) -> None:
        super().__init__(converted.request, prompt)
        self._converted, self._store = converted, store
        self._id = f"resp_{secrets.token_hex(16)}"
        self._is_stored = store.is_on and converted.wants_store
        self._writer = ResponsesWriter(self._id, converted.request.model, converted, stored=self._is_stored)

    def writers(self) -> Sequence[Writer]:
        return [self._writer]

    def response(self) -> dict[str, Any]:
        return self._writer.response()

    def finished(self) -> None:
        if self._is_stored:
            messages = (*self._converted.messages_to_keep, self._writer.message())
            self._store.put(self._id, self.response(), messages)
