"""Messages of a Chat Completions request: contents, images, and the pairing of calls with results."""

from __future__ import annotations

from collections.abc import Sequence

from ...conversation import (
    AssistantMessage,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ...errors import ConversionError
from ..image_parts import ImagePartError, MessageContent, image_source
from ..options import ConversionOptions, ModelVersion
from . import body

_FORMATS = (
    "Please make sure your {0} is valid and has one of the following formats: webp, png, jpeg, and gif."
)
_BILLING_HEADER = "x-anthropic-billing-header"
_NO_RESULT = (
    "An assistant message with 'tool_calls' must be followed by tool messages "
    "responding to each 'tool_call_id'"
)


class MessageConverter:
    """Converts the messages of one request. `thinking` decides what becomes of reasoning in the history."""

    def __init__(
        self, options: ConversionOptions, version: ModelVersion, thinking: bool, has_tools: bool
    ) -> None:
        self._options, self._version = options, version
        self._thinking, self._has_tools = thinking, has_tools

    def convert(self, messages: Sequence[body.ChatMessage]) -> tuple[Message, ...]:
        """Raises `ConversionError`."""
        converted: list[Message] = []
        pending: dict[str, bool] = {}  # ids of the calls before this message; whether each has its result
        for index, message in enumerate(messages):
            if pending and not isinstance(message, body.Tool):
                raise _insufficient()
            if isinstance(message, body.Assistant):
                pending = self._check_calls(message, index)
            elif isinstance(message, body.Tool):
                _check_result(message, index, pending)
                if all(pending.values()):
                    pending = {}
            if (new := self._message(message, index)) is not None:
                converted.append(new)
        if pending:
            raise _insufficient()
        self._check_reasoning(messages)
        _check_prefix(converted)
        return tuple(converted)

    def _message(self, message: body.ChatMessage, index: int) -> Message | None:
        if isinstance(message, body.LatestReminder):
            return LatestReminderMessage(message.content)
        if isinstance(message, body.Assistant):
            return self._assistant(message, index)
        content = _without_billing(message)
        images: tuple[ImageSource, ...] = ()
        placeholders: tuple[tuple[int, int], ...] = ()
        if isinstance(content, str):
            text = content
        else:
            read = self._parts(content, index)
            text, images, placeholders = read.content, tuple(read.images), tuple(read.placeholders)
        if isinstance(message, body.User):
            return UserMessage(text, images=images, placeholders=placeholders)
        if isinstance(message, body.Tool):
            return ToolMessage(text, message.tool_call_id, images=images, placeholders=placeholders)
        if not text:
            return None
        return SystemMessage(text, images=images, placeholders=placeholders)

    def _assistant(self, message: body.Assistant, index: int) -> AssistantMessage:
        content = message.content or ""
        text = content if isinstance(content, str) else self._parts(content, index).content
        calls = None
        if message.tool_calls is not None:
            calls = tuple(
                ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
            )
        reasoning = (message.reasoning_content or "") if self._thinking else None
        return AssistantMessage(text, reasoning, calls, bool(message.prefix))

    def _parts(self, content: Sequence[body.Part], index: int) -> MessageContent:
        converted = MessageContent(self._options.special_tokens)
        path = f".messages[{index}]"
        if self._version != "v4":
            for part in content:
                if isinstance(part, body.FilePart):
                    _check_file(part, path)
        for part in content:
            if isinstance(part, body.TextPart):
                converted.text(part.text)
            elif self._version == "v4":
                converted.text("[Unsupported Image]")
            else:
                converted.image(_source(part, path))
        return converted

    def _check_calls(self, message: body.Assistant, index: int) -> dict[str, bool]:
        if message.content is None and message.tool_calls is None:
            raise ConversionError("Invalid assistant message: content or tool_calls must be set")
        content = message.content or ""
        if not isinstance(content, str) and self._parts(content, index).images:
            raise ConversionError("Image in assistant message is not supported")
        if message.tool_calls is None:
            return {}
        if not message.tool_calls:
            raise ConversionError(
                f"Invalid 'messages[{index}].tool_calls': empty array. "
                "Expected an array with minimum length 1, but got an empty array instead."
            )
        pending: dict[str, bool] = {}
        for call in message.tool_calls:
            if call.id in pending:
                raise _duplicate(call.id, index)
            pending[call.id] = False
        return pending

    def _check_reasoning(self, messages: Sequence[body.ChatMessage]) -> None:
        if not (self._thinking and self._options.reject_missing_reasoning):
            return
        for message in reversed(messages):
            if isinstance(message, body.User):
                return
            if (
                isinstance(message, body.Assistant)
                and message.reasoning_content is None
                and (self._has_tools or message.tool_calls)
            ):
                raise ConversionError(
                    "The `reasoning_content` in the thinking mode must be passed back to the API."
                )


def _without_billing(message: body.System | body.Developer | body.User | body.Tool) -> body.Content:
    """The content; of a system message, without the accounting line that some clients put first."""
    content = message.content
    if isinstance(message, body.User | body.Tool) or not content:
        return content
    if isinstance(content, str):
        return "" if content.startswith(_BILLING_HEADER) else content
    first = content[0]
    is_billing = isinstance(first, body.TextPart) and first.text.startswith(_BILLING_HEADER)
    return content[1:] if is_billing else content


def _check_prefix(messages: Sequence[Message]) -> None:
    if any(isinstance(message, AssistantMessage) and message.prefix for message in messages[:-1]):
        raise ConversionError(
            "Invalid completion message: prefix set true with message which is not final message "
            "or message role is not assistant"
        )


def _check_result(message: body.Tool, index: int, pending: dict[str, bool]) -> None:
    if not pending:
        raise ConversionError(
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
        )
    answered = pending.get(message.tool_call_id)
    if answered is None:
        raise ConversionError(
            f"{_NO_RESULT}, The following tool_call_ids did not have response messages: "
            f"{message.tool_call_id}"
        )
    if answered:
        raise _duplicate(message.tool_call_id, index)
    pending[message.tool_call_id] = True


def _insufficient() -> ConversionError:
    return ConversionError(f"{_NO_RESULT}. (insufficient tool messages following tool_calls message)")


def _duplicate(call_id: str, index: int) -> ConversionError:
    return ConversionError(f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]")


def _source(part: body.ImagePart | body.FilePart, path: str) -> ImageSource:
    if isinstance(part, body.FilePart):
        return image_source(part.file_data or "", "high", path)  # checked before
    try:
        return image_source(part.image_url.url, part.image_url.detail or "high", path)
    except ImagePartError as error:
        raise ConversionError(f"{path}: {_image_problem(error.problem)}") from error


def _image_problem(problem: str) -> str:
    if problem == ImagePartError.TYPE:
        return f"You have uploaded an unsupported image. {_FORMATS.format('image')}"
    return "Invalid base64 data" if problem == ImagePartError.BASE64 else "Unsupported image_url format"


def _check_file(part: body.FilePart, path: str) -> None:
    """Raises `ConversionError` unless the part is an image as a data URL."""
    if part.file_id is not None and part.file_data is not None:
        raise ConversionError(f"{path}: file cannot have both file_id and file_data")
    if part.file_id is not None:
        raise ConversionError(
            f"{path}: file_id is not supported. Pass the image as a base64 data url instead."
        )
    if part.file_data is None:
        raise ConversionError(f"{path}: file must have a file_id or file_data")
    try:
        if part.file_data[:5].lower() != "data:":
            raise ImagePartError(ImagePartError.BASE64)
        image_source(part.file_data, "high", path)
    except ImagePartError as error:
        raise ConversionError(f"{path}: {_file_problem(error.problem)}") from error


def _file_problem(problem: str) -> str:
    if problem == ImagePartError.TYPE:
        return f"You have uploaded an unsupported file. {_FORMATS.format('file')}"
    if problem == ImagePartError.BASE64:
        return "file_data is not a valid base64 data url"
    return "Unsupported image_url format"
