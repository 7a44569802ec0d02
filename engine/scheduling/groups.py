"""The choices of one request compute their prompt once.

Nothing is copied for `n` > 1: the first choice runs, the others wait until its prompt is cached and then find
it by an ordinary prefix hit. If the first one ends before that, the next takes its place, so a group never
waits for a sequence that is gone.
"""

from __future__ import annotations

from stepahead.engine.types import Request


class _Group:
    __slots__ = ("members", "ready")

    def __init__(self, leader: int) -> None:
        self.members = [leader]  # live keys, in choice order
        self.ready = False


class ChoiceGroups:
    """Groups with at least one follower; a request with one choice never appears here."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def join(self, request: Request) -> None:
        """A sequence was submitted; choices come in order, the leader first."""
        if request.key != request.leader:
            group = self._groups.setdefault(request.group, _Group(request.leader))
            group.members.append(request.key)

    def may_start(self, request: Request) -> bool:
        """Whether the prompt is cached already or this sequence is the one to compute it."""
        group = self._groups.get(request.group)
        return group is None or group.ready or group.members[0] == request.key

    def prompt_cached(self, request: Request) -> bool:
        """The prompt of this member is committed. Returns whether that lets others start."""
        group = self._groups.get(request.group)
        if group is None or group.ready:
            return False
        group.ready = True
        return True

    def leave(self, request: Request) -> None:
        """A sequence has ended."""
        group = self._groups.get(request.group)
        if group is not None and request.key in group.members:
            group.members.remove(request.key)
            if len(group.members) == 0:
                del self._groups[request.group]
