"""Text a reader sees, up to the marker or stop sequence that ends it.

Three reasons to keep text back meet here: it may be the beginning of a marker, it may be newlines that vanish
before a marker, it may be the beginning of a stop sequence. What is certain is released at once.
"""

from __future__ import annotations

from .held_text import HeldText
from .markers import MarkerSet, StopSequences


class TextScanner:
    """One stage of text. `strips_before`: the marker that swallows the newlines before it, "" for any."""

    def __init__(self, markers: MarkerSet, stops: StopSequences | None, strips_before: str | None) -> None:
        self._markers, self._stops, self._strips_before = markers, stops, strips_before
        self._held = HeldText()  # text before the tail that is not certain yet
        self._newlines = 0  # how many newlines the text before the tail ends with
        self._scanned = 0  # characters of the tail that the stop automaton has read
        self.tail = ""
        """The end of the text read, which may begin a marker; to be read again in front of what follows."""
        self.stop: str | None = None
        """The stop sequence that was matched."""

    @property
    def is_clear(self) -> bool:
        """Whether nothing is kept back."""
        return not self.tail and not self._held.length

    def read(self, text: str, position: int) -> tuple[str, int, str | None]:
        """(text to show, where reading ended, the marker that ended it) of `text[position:]`.

        No marker: all was read, except `tail`. Or a stop sequence was: see `stop`.
        """
        match = self._markers.search(text, position)
        if self._stops is not None:
            shown = self._shown_before_stop(self._stops, text, position, match.end() if match else len(text))
            if shown is not None:
                return shown, len(text), None
        if match is None:
            return self._shown_so_far(text, position), len(text), None
        return self._shown_before(match[0], text[position : match.start()]), match.end(), match[0]

    def flush(self) -> str:
        """Everything kept back: the text is over."""
        self._held.add(self.tail)
        shown = self._held.release(self._held.length)
        self._clear()
        return shown

    def _clear(self) -> None:
        self._held.clear()
        self._newlines = self._scanned = 0
        self.tail = ""
        if self._stops is not None:
            self._stops.reset()

    def _shown_before_stop(self, stops: StopSequences, text: str, start: int, end: int) -> str | None:
        hit = stops.scan(text, start + self._scanned, end)
        self._scanned = 0
        if hit is None:
            return None
        stop_end, self.stop = hit
        self._held.add(text[start:stop_end])
        shown = self._held.release(self._held.length - len(self.stop))
        self._clear()
        return shown

    def _shown_before(self, marker: str, text: str) -> str:
        dropped = 0
        if self._strips_before in (marker, ""):
            certain = text.rstrip("\n")
            dropped = len(text) - len(certain) + (0 if certain else self._newlines)
        self._held.add(text)
        shown = self._held.release(self._held.length - dropped)
        self._clear()
        return shown

    def _shown_so_far(self, text: str, position: int) -> str:
        kept = self._markers.unfinished(text, position)
        new = text[position : len(text) - kept]
        self.tail, self._scanned = text[len(text) - kept :], kept
        self._held.add(new)
        uncertain = self._trailing_newlines(new) if self._strips_before is not None else 0
        if self._stops is not None:
            uncertain = max(uncertain, self._stops.depth - kept)
        return self._held.release(self._held.length - uncertain)

    def _trailing_newlines(self, new: str) -> int:
        certain = new.rstrip("\n")
        self._newlines = len(new) - len(certain) + (0 if certain else self._newlines)
        return self._newlines
