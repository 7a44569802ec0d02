"""The V4.1 prompt (recipe_spec 2.3).

System messages stay where they are, each behind its own token; a run of user and tool messages is one user
turn. Reasoning of earlier turns is shown only when tools are active: the model was trained to see its whole
train of thought while it works with tools, and only its answers otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from ..conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ..json_text import spaced
from ..special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from .rendered import PromptWriter, RenderedPrompt
from .tool_calls import call_arguments, close_tag, open_tag, write_parameter
from .tool_texts import SCHEMA_FORMAT, V41_TAGS, tool_lines, write_tools_block

_EFFORTS = {"low": 50, "high": 75, "xhigh": 75, "max": 100, None: 75}
_EFFORT_TEXT = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
_SHORT = 4096  # characters of arguments: what is remembered of calls stays within some 20 MB
_UPDATED_TOOLS = "\n\n### Updated Tool Schemas\n\n"

UserPart = UserMessage | ToolMessage


def render(conversation: Conversation, tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> RenderedPrompt:
    """The prompt of a conversation. Never fails: whatever a conversation holds has a rendering."""
    return _Renderer(conversation, tokens).render()


class _Renderer:
    def __init__(self, conversation: Conversation, tokens: SpecialTokens) -> None:
        self.conversation, self.tokens = conversation, tokens
        self.writer = PromptWriter(tokens)
        self.thinking = conversation.thinking_mode
        self.has_tools = bool(conversation.active_tools)
        self.format_text = _format_text(conversation)
        self.call_order: dict[str | None, int] = {}
        """Where each id stands in the latest calls: results are shown in the order of their calls."""

    def render(self) -> RenderedPrompt:
        messages = self._with_leading_system(self.conversation.messages)
        self.writer.special(self.tokens.bos)
        if self.thinking and messages:
            self.writer.special(self.tokens.system)
            self.writer.text(_EFFORT_TEXT.format(_EFFORTS[self.conversation.reasoning_effort]))
        elif messages and isinstance(messages[0], SystemMessage):
            self.writer.special(self.tokens.system)
        index = 0
        for kind, group in groupby(messages, key=_kind):
            run = tuple(group)
            if kind is UserMessage:
                self._user_turn(run)  # type: ignore[arg-type]
            elif kind is LatestReminderMessage:
                self.writer.special(self.tokens.latest_reminder)
                self.writer.text(run[0].content)
            else:
                for offset, message in enumerate(run):
                    self._single(message, index + offset)
            index += len(run)
        self._generation_header(messages)
        return self.writer.finish()

    def _with_leading_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        needs_one = self.has_tools or self.format_text
        if needs_one and not (messages and isinstance(messages[0], SystemMessage)):
            return (SystemMessage(""), *messages)
        return messages

    def _single(self, message: Message, index: int) -> None:
        if isinstance(message, SystemMessage):
            self._system(message, index)
        elif isinstance(message, AssistantMessage):
            self._assistant(message, index)

    def _system(self, message: SystemMessage, index: int) -> None:
        writer = self.writer
        if index:
            writer.special(self.tokens.system)
        writer.content(message, message.content)
        if not index and self.has_tools:
            writer.text("\n\n")
            write_tools_block(writer, V41_TAGS, self.conversation.tools, spaced)
        if not index:
            writer.text(self.format_text)
        if message.tools:
            writer.text(_UPDATED_TOOLS, tool_lines(message.tools, spaced))

    def _user_turn(self, run: Sequence[UserPart]) -> None:
        writer = self.writer
        writer.special(self.tokens.user)
        for position, part in enumerate(self._in_call_order(run)):
            if position:
                writer.text("\n\n")
            if isinstance(part, ToolMessage):
                writer.text("<tool_result>")
                writer.content(part, part.content)
                writer.text("</tool_result>")
            else:
                writer.content(part, part.content)

    def _in_call_order(self, run: Sequence[UserPart]) -> Sequence[UserPart]:
        """Results trade places among themselves; user parts and results without an id keep theirs."""
        slots = [
            i for i, part in enumerate(run) if isinstance(part, ToolMessage) and part.tool_call_id is not None
        ]
        if len(slots) < 2 or not self.call_order:
            return run
        order = self.call_order
        results = sorted((run[i] for i in slots), key=lambda part: order.get(part.tool_call_id, 0))  # type: ignore[union-attr]
        arranged = list(run)
        for slot, result in zip(slots, results, strict=True):
            arranged[slot] = result
        return arranged

    def _assistant(self, message: AssistantMessage, index: int) -> None:
        writer, tokens = self.writer, self.tokens
        writer.special(tokens.assistant)
        is_continued = message.prefix and self.thinking and index > 0
        if is_continued or (self.thinking and self.has_tools):
            writer.special(tokens.thinking_start)
            writer.grounded(message.reasoning_content or "")
        if not is_continued or message.content or message.tool_calls:
            writer.special(tokens.thinking_end)
            writer.grounded(message.content)
            self._calls(message.tool_calls or ())
        if not message.prefix:
            writer.special(tokens.eos)

    def _calls(self, calls: Sequence[ToolCall]) -> None:
        if not calls:
            return
        self.call_order = {}
        for position, call in enumerate(calls):
            self.call_order.setdefault(call.id, position)
        self.writer.text("\n\n")
        open_tag(self.writer, V41_TAGS.calls)
        self.writer.text("\n")
        for call in calls:
            render = _remembered_call if len(call.arguments) <= _SHORT else _call
            self.writer.splice(render(self.tokens, call.name, call.arguments))
        close_tag(self.writer, V41_TAGS.calls)

    def _generation_header(self, messages: Sequence[Message]) -> None:
        last = messages[-1] if messages else None
        if not (isinstance(last, AssistantMessage) and last.prefix):
            self.writer.special(self.tokens.assistant)
            self.writer.special(self.tokens.thinking_start if self.thinking else self.tokens.thinking_end)
        if self.has_tools and self.conversation.tool_choice == "required":
            self.writer.text("\n\n")
            open_tag(self.writer, V41_TAGS.calls)
            self.writer.text("\n")


def _call(tokens: SpecialTokens, name: str, arguments: str) -> Sequence[str]:
    """One call on its own, as the pieces of a prompt."""
    writer = PromptWriter(tokens)
    open_tag(writer, V41_TAGS.invoke, f' name="{name}"')
    writer.text("\n")
    for position, (parameter, value) in enumerate(call_arguments(arguments).items()):
        if position:
            writer.text("\n")
        write_parameter(writer, V41_TAGS, parameter, value, spaced)
    writer.text("\n")
    close_tag(writer, V41_TAGS.invoke)
    writer.text("\n")
    return writer.finish().pieces


_remembered_call = lru_cache(maxsize=4096)(_call)
"""Every turn of a conversation shows all its calls again; reading their arguments was half of rendering."""


def _kind(message: Message) -> type:
    """User and tool messages form runs together; every other kind runs with its own."""
    return UserMessage if isinstance(message, ToolMessage) else type(message)


def _format_text(conversation: Conversation) -> str:
    """A regular expression is enforced while decoding, not described."""
    if conversation.response_format == "json_object":
        return SCHEMA_FORMAT + '{"type": "json_object"}'
    if conversation.response_format == "json_schema":
        return SCHEMA_FORMAT + spaced(conversation.response_schema)
    return ""
