"""The V4 prompt (recipe_spec 2.4), for the older model.

There is no system token: all system texts come first, as one. Calls and results are ordered by id *as text*,
so `call_10` stands before `call_2`; that is how the model was trained, and therefore right.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from ..json_text import spaced_v4
from ..special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from .rendered import PromptWriter, RenderedPrompt
from .tool_calls import call_arguments, close_tag, open_tag, write_parameter
from .tool_texts import SCHEMA_FORMAT, V4_TAGS, write_tools_block

_HIGH = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root \
cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial \
scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered \
alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""
_MAX = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively \
decompose the problem into its most fundamental components, trace every causal chain to its root, and \
resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are \
certain that no assumption remains unchecked and no error remains undiscovered.

"""
_EFFORT_TEXTS = {"low": "", "high": _HIGH, "xhigh": _HIGH, "max": _MAX, None: _HIGH}
_JSON_OBJECT = """

You are a helpful assistant designed to output JSON.
## Response Format:

Reply with JSON object ONLY."""


def render(conversation: Conversation, tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> RenderedPrompt:
    """The prompt of a conversation. Never fails: whatever a conversation holds has a rendering."""
    return _Renderer(conversation, tokens).render()


class _Renderer:
    def __init__(self, conversation: Conversation, tokens: SpecialTokens) -> None:
        self.conversation, self.tokens = conversation, tokens
        self.writer = PromptWriter(tokens)
        self.thinking = conversation.thinking_mode
        self.has_tools = bool(conversation.active_tools)

    def render(self) -> RenderedPrompt:
        self.writer.special(self.tokens.bos)
        if self.thinking:
            self.writer.text(_EFFORT_TEXTS[self.conversation.reasoning_effort])
        messages = self.conversation.messages
        self._systems([m for m in messages if isinstance(m, SystemMessage) and m.content])
        others = [m for m in messages if not isinstance(m, SystemMessage)]
        turns = _with_sorted_calls(_with_joined_users(others))
        before: _Turn | None = None
        for index, turn in enumerate(turns):
            self._turn(turn, before, is_last=index == len(turns) - 1)
            before = turn
        self._generation_header(turns[-1] if turns else None)
        return self.writer.finish()

    def _systems(self, systems: Sequence[SystemMessage]) -> None:
        writer = self.writer
        self._joined(systems)
        if self.has_tools:
            writer.text("\n\n")
            write_tools_block(writer, V4_TAGS, self.conversation.tools, spaced_v4)
        writer.text(_format_text(self.conversation))

    def _turn(self, turn: _Turn, before: _Turn | None, is_last: bool) -> None:
        writer = self.writer
        if isinstance(turn, _UserTurn):
            self._open_user_turn(isinstance(before, _UserTurn | ToolMessage))
            self._joined(turn.messages)
        elif isinstance(turn, ToolMessage):
            self._open_user_turn(isinstance(before, ToolMessage))
            writer.text("<tool_result>")
            writer.content(turn, turn.content)
            writer.text("</tool_result>")
        elif isinstance(turn, LatestReminderMessage):
            writer.special(self.tokens.latest_reminder)
            writer.text(turn.content)
        elif isinstance(turn, AssistantMessage):
            self._assistant(turn, is_last)

    def _joined(self, messages: Sequence[SystemMessage | UserMessage]) -> None:
        """Contents with an empty line between them; an empty one leaves no trace but its images."""
        is_first = True
        for message in messages:
            if not message.content:
                self.writer.images(message)
                continue
            self.writer.text("" if is_first else "\n\n")
            self.writer.content(message, message.content)
            is_first = False

    def _open_user_turn(self, continues: bool) -> None:
        if continues:
            self.writer.text("\n\n")
        else:
            self.writer.special(self.tokens.user)

    def _assistant(self, message: AssistantMessage, is_last: bool) -> None:
        writer, tokens = self.writer, self.tokens
        writer.special(tokens.assistant)
        shows_reasoning = message.reasoning_content is not None and (self.has_tools or message.prefix)
        if shows_reasoning:
            writer.special(tokens.thinking_start)
            writer.grounded(message.reasoning_content or "")
        if not (message.prefix and self.thinking and not message.content):
            writer.special(tokens.thinking_end)
        writer.grounded(message.content)
        if message.tool_calls is not None:
            self._calls(message.tool_calls)
        if not (message.prefix and is_last):
            writer.special(tokens.eos)

    def _calls(self, calls: Sequence[ToolCall]) -> None:
        writer = self.writer
        writer.text("\n\n")
        open_tag(writer, V4_TAGS.calls)
        writer.text("\n")
        for call in calls:
            open_tag(writer, V4_TAGS.invoke, f' name="{call.name}"')
            writer.text("\n")
            for name, value in call_arguments(call.arguments).items():
                write_parameter(writer, V4_TAGS, name, value, spaced_v4)
                writer.text("\n")
            close_tag(writer, V4_TAGS.invoke)
            writer.text("\n")
        close_tag(writer, V4_TAGS.calls)

    def _generation_header(self, last: _Turn | None) -> None:
        if not (isinstance(last, AssistantMessage) and last.prefix):
            self.writer.special(self.tokens.assistant)
            self.writer.special(self.tokens.thinking_start if self.thinking else self.tokens.thinking_end)
        if self.has_tools and self.conversation.tool_choice == "required":
            self.writer.text("\n\n")
            open_tag(self.writer, V4_TAGS.calls)
            self.writer.text("\n")


class _UserTurn:
    """Consecutive user messages."""

    def __init__(self, messages: Sequence[UserMessage]) -> None:
        self.messages = messages


_Turn = Message | _UserTurn


def _with_joined_users(messages: Sequence[Message]) -> list[_Turn]:
    turns: list[_Turn] = []
    users: list[UserMessage] = []
    for message in (*messages, None):
        if isinstance(message, UserMessage):
            users.append(message)
            continue
        if users:
            turns.append(_UserTurn(users))
            users = []
        if message is not None:
            turns.append(message)
    return turns


def _with_sorted_calls(turns: Sequence[_Turn]) -> list[_Turn]:
    """Calls by id; behind each message with n calls, the next n turns: results first, by id."""
    arranged = [_with_sorted_ids(turn) for turn in turns]
    for index, turn in enumerate(turns):  # positions before any moved: what the training renderer did
        if not isinstance(turn, AssistantMessage) or not turn.tool_calls:
            continue
        following = slice(index + 1, index + 1 + len(turn.tool_calls))
        if len(arranged[following]) == len(turn.tool_calls):
            arranged[following] = sorted(arranged[following], key=_result_order)
    return arranged


def _with_sorted_ids(turn: _Turn) -> _Turn:
    if not isinstance(turn, AssistantMessage) or not turn.tool_calls:
        return turn
    calls = tuple(sorted(turn.tool_calls, key=lambda call: call.id.encode()))
    return AssistantMessage(turn.content, turn.reasoning_content, calls, turn.prefix)


def _result_order(turn: _Turn) -> tuple[int, bytes]:
    if not isinstance(turn, ToolMessage):
        return (2, b"")
    return (0, b"") if turn.tool_call_id is None else (1, turn.tool_call_id.encode())


def _format_text(conversation: Conversation) -> str:
    if conversation.response_format == "json_object":
        return _JSON_OBJECT
    if conversation.response_format == "json_schema":
        return SCHEMA_FORMAT + spaced_v4(conversation.response_schema)
    return ""
