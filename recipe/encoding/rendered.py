"""A prompt under construction, and finished.

A prompt is an alternation of ordinary text and special tokens, and the difference is not visible in the
characters: a user may type `<｜User｜>`. So the renderer never builds one string; it builds pieces whose kind
is known by position, and ids are made piece by piece. Rejected: one string plus offsets, which is where
forged tokens come from as soon as somebody edits the string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from ..conversation import ImageContent, ImageSource
from ..special_tokens import SpecialTokens

_TOKEN_NAME = re.compile(r"\{([a-z_]+)\}")


class RenderedPrompt:
    """A finished prompt: `pieces[0::2]` is text (possibly empty), `pieces[1::2]` special tokens."""

    def __init__(self, pieces: Sequence[str], image_sources: Sequence[ImageSource]) -> None:
        self.pieces = pieces
        self.image_sources = tuple(image_sources)
        """In the order of their placeholders. A message with too few placeholders still lists them all."""

    @cached_property
    def prompt(self) -> str:
        return "".join(self.pieces)

    @cached_property
    def special_ranges(self) -> list[tuple[int, int]]:
        """Half-open ranges of `prompt`, in characters, that are special tokens; ascending."""
        ranges, position = [], 0
        for index, piece in enumerate(self.pieces):
            end = position + len(piece)
            if index % 2:
                ranges.append((position, end))
            position = end
        return ranges


class PromptWriter:
    """Collects text and special tokens. What is passed as text can never become a token."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self.tokens = tokens
        self._pieces: list[str] = []
        self._text: list[str] = []
        self._images: list[ImageSource] = []

    def text(self, *texts: str) -> None:
        self._text.extend(texts)

    def special(self, spelling: str) -> None:
        self._pieces += ("".join(self._text), spelling)
        self._text.clear()

    def around_special(self, before: str, spelling: str, after: str) -> None:
        """`text`, `special`, `text` in one call: half of what a conversation with many tool calls costs."""
        text = self._text
        text.append(before)
        self._pieces += ("".join(text), spelling)
        text[:] = (after,)

    def splice(self, pieces: Sequence[str]) -> None:
        """The pieces of a finished prompt that has a special token in it."""
        self._text.append(pieces[0])
        self._pieces.append("".join(self._text))
        self._pieces += pieces[1:-1]
        self._text[:] = (pieces[-1],)

    def template(self, text: str) -> None:
        """Wording of ours in which `{dsml}` and the like name special tokens."""
        for index, part in enumerate(_TOKEN_NAME.split(text)):
            if index % 2:
                self.special(getattr(self.tokens, part))
            else:
                self._text.append(part)

    def grounded(self, text: str) -> None:
        """Text of the model, in which the grounding tokens mean themselves."""
        position = 0
        for match in self.tokens.grounding.finditer(text):
            self._text.append(text[position : match.start()])
            self.special(match[0])
            position = match.end()
        self._text.append(text[position:] if position else text)

    def content(self, message: ImageContent, content: str) -> None:
        """The content of a message that may hold image placeholders, and its images."""
        if not message.images:
            self._text.append(content)
            return
        position = 0
        for start, end in self._placeholders(message, content):
            self._text.append(content[position:start])
            self.special(self.tokens.image)
            position = end
        self._text.append(content[position:])
        self.images(message)

    def images(self, message: ImageContent) -> None:
        """Only the images: a message whose empty content is left out is still listed with them."""
        self._images += message.images

    def _placeholders(self, message: ImageContent, content: str) -> Sequence[tuple[int, int]]:
        if message.placeholders is not None:
            return message.placeholders
        found: list[tuple[int, int]] = []
        token, start = self.tokens.image, 0
        while len(found) < len(message.images) and (start := content.find(token, start)) >= 0:
            found.append((start, start + len(token)))
            start += len(token)
        return found

    def finish(self) -> RenderedPrompt:
        self._pieces.append("".join(self._text))
        self._text.clear()
        return RenderedPrompt(self._pieces, self._images)
