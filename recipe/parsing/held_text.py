"""Text that may turn out to be part of a marker, and so may not be shown yet.

It can be long (a run of newlines before a tag, a long stop string that keeps nearly matching) while it is
added to and taken from a character at a time. So it is a queue of the pieces as they came, with an offset
into the first: adding and releasing cost what is added and released, never what is held.
"""

from __future__ import annotations

from collections import deque


class HeldText:
    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._offset = 0  # characters of the first piece that were released
        self.length = 0

    def add(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self.length += len(text)

    def release(self, count: int) -> str:
        """The first `count` characters, at most all of them; they are held no longer."""
        released: list[str] = []
        while count > 0 and self._pieces:
            first = self._pieces[0]
            taken = first[self._offset : self._offset + count]
            released.append(taken)
            count -= len(taken)
            self.length -= len(taken)
            self._offset += len(taken)
            if self._offset == len(first):
                self._pieces.popleft()
                self._offset = 0
        return "".join(released)

    def clear(self) -> None:
        self._pieces.clear()
        self._offset = self.length = 0
