"""Long texts in parts that have the same ids apart as together.

The ids of a text come out of the tokenizer as one Python list, and while it is made the interpreter lock is
held: for megabytes of text, longer than the loop may stand still. So it is cut behind line ends,
where cutting changes nothing: between a character that is no space, a newline, and a letter. No token may
span newline and letter, which `Vocabulary.has_line_starts` asks of every token; then no merge crosses the
cut, and what the pre-tokenizers of byte-level vocabularies see on each side is what they would have seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LONG = 200_000
_PART = 100_000
_CUT = re.compile(r"(?<=\S\n)(?=[A-Za-z])")


def parts(text: str) -> list[str]:
    """The text cut into parts of some hundred thousand characters, longer where it has no line ends."""
    cut: list[str] = []
    start = 0
    while len(text) - start > LONG:
        match = _CUT.search(text, start + _PART)
        if match is None:
            break
        cut.append(text[start : match.start()])
        start = match.start()
    cut.append(text[start:])
    return cut


def all_parts(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """(parts of all texts in order, how many parts each text has)."""
    cut = [parts(text) if len(text) > LONG else [text] for text in texts]
    return [part for of_text in cut for part in of_text], list(map(len, cut))
