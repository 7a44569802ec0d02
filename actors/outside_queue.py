"""Callers that wait until the admission queue has room for their request.

The scheduler's queue is bounded, and under the policy `wait` a caller beyond it simply waits: its own task is
the backpressure. It must still keep its turn, be cancellable, and not outlive its deadline.

Invariant: whoever leaves this queue, by whatever way, has its reply answered.
"""

from __future__ import annotations

from stepahead.engine.scheduling.deadlines import Deadlines

from .messages import RequestSubmitted


class OutsideQueue:
    """Submissions in order of arrival. The choices of a request come and go together, by its first key."""

    def __init__(self) -> None:
        self._waiting: dict[int, RequestSubmitted] = {}
        self._deadlines = Deadlines()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def sequences(self) -> int:
        return sum(len(message.requests) for message in self._waiting.values())

    @property
    def next_size(self) -> int:
        """Sequences of the submission whose turn it is."""
        return len(next(iter(self._waiting.values())).requests)

    def push(self, message: RequestSubmitted) -> None:
        leader = message.requests[0]
        self._waiting[leader.key] = message
        self._deadlines.add(leader.key, leader.deadline)

    def pop(self) -> RequestSubmitted:
        """The submission whose turn it is; the caller answers it."""
        key = next(iter(self._waiting))
        self._deadlines.discard(key)
        return self._waiting.pop(key)

    def remove(self, key: int) -> None:
        """A caller left; ignored for keys that do not wait here."""
        message = self._waiting.pop(key, None)
        if message is not None:
            self._deadlines.discard(key)
            message.reply.send(None)

    def keys(self) -> tuple[int, ...]:
        """Keys of all choices that wait."""
        return tuple(request.key for message in self._waiting.values() for request in message.requests)

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, now: float) -> tuple[int, ...]:
        """Removes submissions whose deadline has passed; returns the keys of all their choices."""
        expired: list[int] = []
        for key in self._deadlines.expired(now):
            message = self._waiting.pop(key)
            message.reply.send(None)
            expired.extend(request.key for request in message.requests)
        return tuple(expired)
