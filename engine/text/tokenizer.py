"""Text to token ids, by the vocabulary file that comes with a checkpoint.

The `tokenizers` library does the work; this class decides what it leaves open. *Who writes the
beginning-of-text token*: under the "release" policy we do, in front of plain text, under "native" whatever
the file's own post-processor says (model_spec 4.8). *Whose special tokens count*: text may spell one
("<｜User｜>"), and only text we rendered ourselves may mean it; `literal=True` encodes the characters
instead. *Who waits*: `Tokenizer.encode` of the library holds the interpreter lock for its whole call,
seconds for a long prompt, in any thread; its batch form releases it, so every call here is a batch.

The 21 placeholder tokens some engines register behind the vocabulary are left out: they have no embedding, so
their only use would be to be rejected later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers

from ..errors import EngineError, InvalidRequestError, PromptTooLongError
from .detokenizer import Detokenizer
from .token_bytes import TokenBytes

Compatibility = Literal["release", "native"]

BEGIN_OF_TEXT = "<｜begin▁of▁sentence｜>"
END_OF_TEXT = "<｜end▁of▁sentence｜>"
PADDING = "<｜▁pad▁｜>"


class TokenizerFileError(EngineError, ValueError):
    """A `tokenizer.json` that is missing, unreadable, or not of the kind this engine decodes."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"tokenizer {source}: {problem}")
        self.source, self.problem = source, problem


class UnencodableTextError(InvalidRequestError):
    """Text that is not Unicode: it holds half a surrogate pair and has no UTF-8 form."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the text has an unpaired surrogate at character {index} and cannot be encoded")
        self.index = index


class UnknownTokenError(InvalidRequestError):
    """A token asked for by its spelling that the vocabulary does not have."""

    def __init__(self, spelling: str) -> None:
        super().__init__(f"the vocabulary has no token {spelling!r}")
        self.spelling = spelling


class Tokenizer:
    """One vocabulary. Immutable after construction and safe to use from several threads."""

    def __init__(
        self, definition: str, *, compatibility: str = "release", source: str = "given as text"
    ) -> None:
        """`definition` is the content of a `tokenizer.json`; `compatibility` comes from the model's config.

        Raises `TokenizerFileError`.
        """
        if compatibility not in get_args(Compatibility):
            raise TokenizerFileError(
                source, f"tokenizer_compatibility={compatibility!r} is none of {get_args(Compatibility)}"
            )
        self._definition, self._adds_begin = definition, compatibility == "release"
        self._tokenizer = _parse(definition, source)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the largest id. A model's embedding may have more rows, never fewer."""
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.begin_id: int | None = vocabulary.get(BEGIN_OF_TEXT)
        self.end_id: int | None = vocabulary.get(END_OF_TEXT)
        self.pad_id: int | None = vocabulary.get(PADDING)
        if self._adds_begin and self.begin_id is None:
            raise TokenizerFileError(
                source, f"has no token {BEGIN_OF_TEXT!r}, which the release policy inserts"
            )
        self._vocabulary = vocabulary

    @classmethod
    def from_file(cls, path: str | Path, *, compatibility: str = "release") -> Tokenizer:
        """Load `tokenizer.json`, or the one in a checkpoint folder. Raises `TokenizerFileError`."""
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        try:
            definition = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerFileError(str(file), f"cannot be read: {error}") from error
        return cls(definition, compatibility=compatibility, source=str(file))

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's own object, for code that derives tables from the vocabulary."""
        return self._tokenizer

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        """Token ids of one text; see `encode_many`. About 1 s for 2 MB, without the interpreter lock."""
        return self.encode_many((text,), literal=literal)[0]

    def encode_prompt(self, text: str, context: int) -> list[int]:
        """`encode`, but more tokens than `context` raise `PromptTooLongError` before they become objects.

        Making a list of a million ids holds the interpreter lock for 30 ms, in whatever thread.
        """
        _check_unicode(text)
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=not self._adds_begin)
        if len(encoding) > context:
            raise PromptTooLongError(len(encoding), context)
        return self._with_begin(encoding.ids)

    def encode_many(self, texts: Sequence[str], *, literal: bool = False) -> list[list[int]]:
        """Token ids of each text, in parallel.

        Special tokens spelled in the text become their ids, and the release policy puts the
        beginning-of-text token in front unless the text already starts with it. With `literal` neither
        happens: the ids are those of the characters, a piece to be placed between special tokens. Raises
        `UnencodableTextError`.
        """
        for text in texts:
            _check_unicode(text)
        if literal:
            return [e.ids for e in self._literal.encode_batch_fast(list(texts), add_special_tokens=False)]
        add_native = not self._adds_begin
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_native)
        return [self._with_begin(encoding.ids) for encoding in encodings]

    def _with_begin(self, ids: list[int]) -> list[int]:
        if not self._adds_begin or self.begin_id is None or ids[:1] == [self.begin_id]:
            return ids
        return [self.begin_id, *ids]

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same vocabulary without added tokens, so that no spelling in a text means more than itself."""
        value: dict[str, Any] = json.loads(self._definition)
        return tokenizers.Tokenizer.from_str(json.dumps(value | {"added_tokens": [], "post_processor": None}))

    def token_id(self, spelling: str) -> int:
        """The id of one token of the vocabulary, such as "<｜User｜>". Raises `UnknownTokenError`."""
        found: int | None = self._vocabulary.get(spelling)
        if found is None:
            raise UnknownTokenError(spelling)
        return found

    def spelling(self, token_id: int) -> str | None:
        """How the vocabulary spells a token: byte-level characters for text, plain for added tokens."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return found

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The byte table, built on first use (0.1 s for 129 k tokens)."""
        return TokenBytes(self._vocabulary, self.special_ids)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A new incremental decoder for one output."""
        return Detokenizer(self.token_bytes, skip_special_tokens=skip_special_tokens)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """All at once what a detokenizer gives piece by piece."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(tuple(token_ids)) + detokenizer.finish()


def _parse(definition: str, source: str) -> tokenizers.Tokenizer:
    try:
        parsed = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFileError(source, f"is not a tokenizer definition: {error}") from error
    if not isinstance(parsed.decoder, tokenizers.decoders.ByteLevel):
        kind = type(parsed.decoder).__name__
        raise TokenizerFileError(source, f"decodes by {kind}; only a byte-level vocabulary is supported")
    # Limits and padding written into a file are training leftovers; silently cut prompts are the worst
    # answer.
    parsed.no_truncation()
    parsed.no_padding()
    return parsed


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnencodableTextError(error.start) from None
