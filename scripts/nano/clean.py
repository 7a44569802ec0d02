"""Markup to plain text: HTML pages, reStructuredText sources, and paragraph de-duplication.

Regular expressions and not a parser: the pages come from three known generators, and a page that is cleaned
badly costs a few odd tokens, not a wrong result.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_DROP = re.compile(r"<(script|style|nav|head|header|footer|svg|button|form)\b.*?</\1>", re.S | re.I)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_BLOCK = re.compile(r"</?(p|div|br|li|ul|ol|tr|table|h[1-6]|dt|dd|dl|pre|blockquote|section)\b[^>]*>", re.I)
_CELL = re.compile(r"</t[dh]>", re.I)
_TAG = re.compile(r"<[^>]+>")
_PRE = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.S | re.I)
_BLANKS = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t]+")

_ROLE = re.compile(r":[a-zA-Z:+-]+:`~?!?([^`<]+?)(?: ?<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?) ?<[^`>]*>`_{1,2}")
_DIRECTIVE = re.compile(r"^\.\. [^\n]*\n(?:[ \t]+:[^\n]*\n)*", re.M)
_RULER = re.compile(r"^([=\-~^\"'*#+.])\1{2,}\s*$", re.M)


def html_text(page: str) -> str:
    """The text of a page; preformatted blocks keep their line breaks and spaces."""
    main = re.search(r"<main\b.*?</main>", page, re.S | re.I)
    page = _COMMENT.sub("", _DROP.sub("", main.group(0) if main else page))
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(_TAG.sub("", match.group(1)))
        return f"\n\n\x00{len(kept) - 1}\x00\n\n"

    page = _PRE.sub(keep, page)
    page = _SPACES.sub(" ", page.replace("\n", " "))
    page = _TAG.sub("", _BLOCK.sub("\n", _CELL.sub("  ", page)))
    lines = [line.strip() for line in page.split("\n")]
    text = _BLANKS.sub("\n\n", "\n".join(lines))
    text = re.sub("\x00(\\d+)\x00", lambda m: kept[int(m.group(1))].strip("\n"), text)
    return html.unescape(text).strip()


def rst_text(source: str) -> str:
    """The text of a reStructuredText file without roles, links, directive heads and section rulers."""
    text = _LINK.sub(r"\1", _ROLE.sub(r"\1", source))
    text = _RULER.sub("", _DIRECTIVE.sub("", text)).replace("``", "`").replace("::\n", ":\n")
    return _BLANKS.sub("\n\n", text).strip()


def pieces(text: str, limit: int = 3000) -> Iterator[str]:
    """Cut a long text at paragraph ends into documents of at most about `limit` characters."""
    part: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        if part and size + len(paragraph) > limit:
            yield "\n\n".join(part)
            part, size = [], 0
        part.append(paragraph[: 2 * limit])
        size += len(paragraph)
    if part:
        yield "\n\n".join(part)


class Deduplicator:
    """Drops paragraphs that were seen before (navigation, licence headers); short ones always pass."""

    def __init__(self, shortest: int = 60) -> None:
        self._seen: set[int] = set()
        self._shortest = shortest

    def __call__(self, text: str) -> str:
        kept = []
        for paragraph in text.split("\n\n"):
            key = hash(paragraph)
            if len(paragraph) >= self._shortest:
                if key in self._seen:
                    continue
                self._seen.add(key)
            kept.append(paragraph)
        return "\n\n".join(kept).strip()
