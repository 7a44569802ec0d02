"""What the items of a Responses request say, put together as messages.

An assistant turn is spread over items: reasoning, text, calls. They belong together until something of
another role comes, or all calls have their outputs. Outputs must follow their calls and are put in call
order.

Tools that a search brought up are announced by a system message. Their schemas are checked with those of the
declared tools, after all messages, so the announcement is completed by `announce`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...conversation import AssistantMessage, Message, SystemMessage, ToolCall, ToolDefinition, ToolMessage
from ...errors import ConversionError
from ..tools import Declaration
from .items import Answered, AssistantText, Called, Piece, Reasoned, Said
from .tools import DecodedTool, ToolNames, definitions


class _Turn:
    """An assistant message under construction."""

    def __init__(self, reasoning: str | None) -> None:
        self.reasoning = reasoning
        self.content = ""
        self.calls: list[ToolCall] = []
        self.results: dict[str | None, ToolMessage] = {}
        self.searches: list[list[DecodedTool]] = []

    @property
    def is_empty(self) -> bool:
        return not (self.reasoning or self.content or self.calls)

    @property
    def unanswered(self) -> str | None:
        return next((call.id for call in self.calls if call.id not in self.results), None)


class TurnBuilder:
    """Puts the pieces of one request together. `thinking` decides what becomes of reasoning."""

    def __init__(self, thinking: bool, names: ToolNames) -> None:
        self.thinking, self._names = thinking, names
        self.messages: list[Message] = []
        self.searches: dict[int, list[DecodedTool]] = {}
        """By the place in `messages` of the announcement: the tools a search brought up."""
        self._found_names: dict[int, list[str]] = {}
        self._turn: _Turn | None = None
        self._reasoning: str | None = None
        self._call_ids: set[str] = set()
        self._answered: set[str] = set()

    def go_on(self, messages: tuple[Message, ...]) -> None:
        """Put a conversation in front. Calls it ends with may be answered now."""
        last = messages[-1] if messages else None
        if not (isinstance(last, AssistantMessage) and last.tool_calls):
            self.messages += messages
            return
        self.messages += messages[:-1]
        self._turn = _Turn(last.reasoning_content)
        self._turn.content, self._turn.calls = last.content, list(last.tool_calls)
        self._call_ids.update(call.id for call in last.tool_calls)

    def build(self, pieces: Iterable[Piece]) -> None:
        """Raises `ConversionError`."""
        for piece in pieces:
            self._add(piece)
        self._close()

    def found_tools(self) -> Iterator[Declaration]:
        """All tools that searches brought up."""
        for place, tools in self.searches.items():
            declared = list(definitions(tools, self._names, deferred=True))
            self._found_names[place] = [name for name, _ in declared]
            yield from declared

    def announce(self, chosen: Mapping[str, ToolDefinition]) -> tuple[Message, ...]:
        """The messages, with those found tools announced that the request may use."""
        announced: list[Message] = []
        for place, message in enumerate(self.messages):
            if place not in self.searches:
                announced.append(message)
                continue
            tools = tuple(chosen[name] for name in self._found_names.get(place, ()) if name in chosen)
            if tools:
                announced.append(SystemMessage("", tools=tools))
        return tuple(announced)

    def _add(self, piece: Piece) -> None:
        if isinstance(piece, Said):
            self._close()
            self.messages.append(piece.message)
        elif isinstance(piece, AssistantText):
            self._check_answered()
            if piece.fault is not None:
                raise piece.fault
            turn = self._open_turn()
            turn.content = "\n\n".join(filter(None, (turn.content, piece.text)))
        elif isinstance(piece, Reasoned):
            self._reason(piece.text)
        elif isinstance(piece, Called):
            self._call(piece.call)
        else:
            self._answer(piece)

    def _reason(self, text: str) -> None:
        self._check_answered()
        if not text:
            return
        if self._turn is not None and self._turn.is_empty:
            self._turn = None  # it is what is reasoned about now
        self._finish_turn()
        self._reasoning = text if self._reasoning is None else f"{self._reasoning}\n{text}"

    def _call(self, call: ToolCall) -> None:
        if call.id in self._call_ids:
            raise ConversionError(f"Duplicate 'call_id': {call.id}.")
        self._call_ids.add(call.id)
        if self._turn is not None and self._turn.calls and self._turn.unanswered is None:
            self._finish_turn()
        self._open_turn().calls.append(call)

    def _answer(self, piece: Answered) -> None:
        call_id = piece.result.tool_call_id
        if call_id is None:  # an output that names no call is a message of its own
            self._close()
            self.messages.append(piece.result)
            return
        if call_id in self._answered:
            raise ConversionError(f"Duplicate tool output for call_id: {call_id}.")
        if self._turn is None or all(call.id != call_id for call in self._turn.calls):
            raise ConversionError(f"No tool call found for tool output with call_id {call_id}.")
        if piece.fault is not None:
            raise piece.fault
        self._answered.add(call_id)
        self._turn.results[call_id] = piece.result
        if piece.found is not None:
            self._turn.searches.append(piece.found)

    def _open_turn(self) -> _Turn:
        if self._turn is not None and self._reasoning is None:
            return self._turn
        self._finish_turn()
        self._turn = _Turn(self._reasoning)
        self._reasoning = None
        return self._turn

    def _check_answered(self) -> None:
        if self._turn is not None and (missing := self._turn.unanswered) is not None:
            raise ConversionError(f"No tool output found for tool call {missing}.")
        if self._turn is not None and self._turn.calls:
            self._finish_turn()

    def _finish_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        reasoning = (turn.reasoning or "") if self.thinking else None
        self.messages.append(AssistantMessage(turn.content, reasoning, tuple(turn.calls) or None))
        self.messages += [turn.results[call.id] for call in turn.calls]
        for tools in turn.searches:
            self.searches[len(self.messages)] = tools
            self.messages.append(SystemMessage(""))

    def _close(self) -> None:
        """Everything the assistant said so far is said."""
        self._check_answered()
        if self._reasoning is not None:
            self._open_turn()
        self._finish_turn()
