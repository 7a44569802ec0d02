"""Finds the longest cached prefix of a prompt: a chain of blocks, and a kept window state at its end.

A block of tokens is named by a digest of its salt, its predecessor's digest and its tokens, so one dictionary
holds the tree of all cached prefixes. A hit compares the tokens as well: a collision, engineered or not, must
never show one caller another's context. Rejected: 64-bit non-cryptographic hashes without a comparison (a
neighbour's poisoned cache), and a radix tree over tokens (slower to walk, no cheaper to evict).

A hit is usable only where a window state was kept, since blocks alone do not hold the sliding window. States
are few and large: the newest of a sequence is warm, its older ones turn cold until somebody hits them, so a
long prompt pushes out its own states before those of others. So does a session: once its next turn has a
state of its own, the state of the turn before is cold.

Blocks that an agent used are *lasting*: it comes back after its tools have run, many times, while most chats
never do. Idle ones are evicted after all others, but only as long as they are no more than half of the idle
blocks, or agents that have gone would leave no room for chats.

Invariants: an indexed block is referenced or idle; whoever references a block by a hit references its
predecessors, so the longest idle is a leaf, except where two sequences computed the same blocks at once:
there the whole subtree of an evicted node is forgotten with it. The predecessors of a lasting block are
lasting.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np

from stepahead.engine.model.runner import Int32s

from .reservation import EMPTY, Publication

DIGEST_BYTES = 16


class Hit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The longest usable prefix: `blocks` in order, `snapshot` the state slot at their end (0: no hit)."""

    blocks: Int32s
    snapshot: int


NO_HIT = Hit(blocks=EMPTY, snapshot=0)


class _Node:
    """One cached block."""

    __slots__ = (
        "alive", "block", "children", "digest", "lasting", "parent", "salt", "session", "snapshot", "tokens"
    )  # fmt: skip

    def __init__(self, digest: bytes, parent: _Node | None, salt: bytes, tokens: bytes, block: int) -> None:
        self.digest, self.parent, self.salt, self.tokens, self.block = digest, parent, salt, tokens, block
        self.children: dict[_Node, None] = {}  # ordered, so that runs repeat to the block id
        self.snapshot = 0
        self.session: tuple[bytes, str] | None = None  # whose newest state this is
        self.lasting = False
        self.alive = True

    def holds(self, parent: _Node | None, salt: bytes, tokens: bytes) -> bool:
        """Whether this is that content, and not one that collides with it."""
        return self.parent is parent and self.salt == salt and self.tokens == tokens


class _Cursor:
    """Where a sequence's publications continue."""

    __slots__ = ("columns", "kept", "node")

    def __init__(self, node: _Node | None, columns: int) -> None:
        self.node, self.columns = node, columns
        self.kept: _Node | None = None  # holds the newest state this sequence published

    @property
    def alive(self) -> bool:
        return self.node is None or self.node.alive


def chain_digest(salt: bytes, parent: bytes, tokens: bytes) -> bytes:
    """Names a block. The salt counts at the root, behind its length: no two inputs concatenate alike."""
    prefix = parent or len(salt).to_bytes(8, "little") + salt
    return blake2b(prefix + tokens, digest_size=DIGEST_BYTES).digest()


def _name(parent: _Node | None, salt: bytes, tokens: bytes) -> bytes:
    return chain_digest(salt, b"" if parent is None else parent.digest, tokens)


class PrefixIndex:
    """Knows contents; counts no references (`BlockPool` does) and owns no ids."""

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = 4 * block_tokens
        self._block_tokens = block_tokens
        self._nodes: dict[bytes, _Node] = {}
        self._by_block: dict[int, _Node] = {}
        self._idle: dict[_Node, None] = {}  # unreferenced, longest first
        self._idle_lasting: dict[_Node, None] = {}  # the same of lasting blocks
        self._sessions: dict[tuple[bytes, str], _Node] = {}  # each's newest state; as many as states at most
        self._cold: dict[_Node, None] = {}  # holders of states, longest unused first
        self._warm: dict[_Node, None] = {}
        self._cursors: dict[int, _Cursor] = {}

    @property
    def idle(self) -> int:
        """Indexed blocks that nobody references: free, with content."""
        return len(self._idle) + len(self._idle_lasting)

    def idle_ids(self) -> Int32s:
        """The blocks that `idle` counts, for checks."""
        return np.array([node.block for node in (*self._idle, *self._idle_lasting)], dtype=np.int32)

    @property
    def snapshots(self) -> int:
        return len(self._cold) + len(self._warm)

    @property
    def publishers(self) -> int:
        """Sequences that were adopted, or have published, and were not forgotten."""
        return len(self._cursors)

    # Looking up.

    def match(self, tokens: bytes, salt: bytes, limit: int) -> Hit:
        """The longest prefix of `tokens` (int32 bytes) of at most `limit` tokens that has a kept state."""
        size, node, blocks = self._block_bytes, None, []
        best: _Node | None = None
        usable = 0
        for start in range(0, min(limit // self._block_tokens, len(tokens) // size) * size, size):
            child = self._child(node, salt, tokens[start : start + size])
            if child is None:
                break
            node = child
            blocks.append(node.block)
            if node.snapshot:
                best, usable = node, len(blocks)
        if best is None:
            return NO_HIT
        self._cold.pop(best, None)
        self._warm.pop(best, None)
        self._warm[best] = None
        return Hit(blocks=np.array(blocks[:usable], dtype=np.int32), snapshot=best.snapshot)

    def _child(self, parent: _Node | None, salt: bytes, tokens: bytes) -> _Node | None:
        node = self._nodes.get(_name(parent, salt, tokens))
        return node if node is not None and node.holds(parent, salt, tokens) else None

    def adopt(self, key: int, blocks: Int32s, *, lasting: bool = False) -> None:
        """A sequence starts behind these blocks: they are in use, its publications continue there."""
        nodes = [self._by_block[block] for block in blocks.tolist()]
        for node in nodes:
            self._idle_of(node).pop(node, None)
            node.lasting |= lasting
        self._cursors[key] = _Cursor(nodes[-1] if nodes else None, len(nodes))

    # Growing.

    def publish(self, publication: Publication) -> list[int]:
        """Adds the blocks behind what this sequence published before. Returns state slots it does not keep.

        Content that is cached already under another block stays there; the sequence's own block is then
        private. A sequence whose chain was evicted or cleared publishes nothing more.
        """
        cursor = self._cursors.setdefault(publication.sequence_key, _Cursor(None, 0))
        unused = [publication.snapshot] if publication.snapshot else []
        if not cursor.alive or cursor.columns != publication.first_column:
            return unused
        for column, block in enumerate(publication.blocks.tolist()):
            start = column * self._block_bytes
            chunk = publication.tokens[start : start + self._block_bytes]
            node = self._child_or_new(cursor.node, publication.salt, chunk, block)
            if node is None:
                cursor.columns = -1
                return unused
            if publication.lasting:
                self._make_lasting(node)
            cursor.node, cursor.columns = node, cursor.columns + 1
        return self._keep(cursor, publication)

    def _child_or_new(self, parent: _Node | None, salt: bytes, tokens: bytes, block: int) -> _Node | None:
        """None on a collision: the older content keeps the name."""
        digest = _name(parent, salt, tokens)
        node = self._nodes.get(digest)
        if node is not None:
            return node if node.holds(parent, salt, tokens) else None
        node = _Node(digest, parent, salt, tokens, block)
        self._nodes[digest] = self._by_block[block] = node
        if parent is not None:
            parent.children[node] = None
        return node

    def _keep(self, cursor: _Cursor, publication: Publication) -> list[int]:
        node, snapshot = cursor.node, publication.snapshot
        if not snapshot or node is None or node.snapshot:
            return [snapshot] if snapshot else []
        node.snapshot = snapshot
        self._warm[node] = None
        self._cool(cursor.kept)
        cursor.kept = node
        if publication.session:
            self._cool(self._succeed(publication, node))
        return []

    def _cool(self, node: _Node | None) -> None:
        if node in self._warm:
            del self._warm[node]
            self._cold[node] = None

    def _succeed(self, publication: Publication, node: _Node) -> _Node | None:
        """The session's newest state is now `node`'s. Returns the last one's, if this continues it: a user
        may have several conversations under one name."""
        name = (publication.salt, publication.session)
        last = self._sessions.get(name)
        if last is not None:
            last.session = None
        self._sessions[name], node.session = node, name
        ancestor = node.parent
        while ancestor is not None and ancestor is not last:
            ancestor = ancestor.parent
        return ancestor

    def _idle_of(self, node: _Node) -> dict[_Node, None]:
        return self._idle_lasting if node.lasting else self._idle

    def _make_lasting(self, node: _Node) -> None:
        """Somebody else may have published the block, and left it."""
        if node in self._idle:
            del self._idle[node]
            self._idle_lasting[node] = None
        node.lasting = True

    # Shrinking.

    def release(self, ids: Int32s) -> Int32s:
        """These blocks are no longer referenced. Returns those without content; the others are idle now."""
        plain = []
        for block in ids.tolist():
            node = self._by_block.get(block)
            if node is None:
                plain.append(block)
            else:
                self._idle_of(node)[node] = None
        return np.array(plain, dtype=np.int32)

    def evict(self, count: int) -> tuple[Int32s, list[int]]:
        """Forgets `count` idle blocks or more, longest idle first, lasting ones as told above: their ids, and
        the states they held."""
        ids: list[int] = []
        snapshots: list[int] = []
        while len(ids) < count and self.idle:
            spared = len(self._idle_lasting) <= len(self._idle)
            queue = self._idle if spared else self._idle_lasting
            self._remove(next(iter(queue)), ids, snapshots)
        return np.array(ids, dtype=np.int32), snapshots

    def _remove(self, root: _Node, ids: list[int], snapshots: list[int]) -> None:
        if root.parent is not None:
            root.parent.children.pop(root, None)
        stack = [root]
        while stack:
            node = stack.pop()
            stack.extend(node.children)
            node.alive = False
            del self._nodes[node.digest], self._by_block[node.block]
            idle = self._idle_of(node)
            if node in idle:
                del idle[node]
                ids.append(node.block)
            if node.snapshot:
                snapshots.append(self._drop_snapshot(node))

    def evict_snapshot(self) -> int:
        """Gives up the state that is least likely to be hit; 0 when none is kept."""
        holders = self._cold or self._warm
        return self._drop_snapshot(next(iter(holders))) if holders else 0

    def _drop_snapshot(self, node: _Node) -> int:
        self._cold.pop(node, None)
        self._warm.pop(node, None)
        if node.session is not None:
            del self._sessions[node.session]
            node.session = None
        snapshot, node.snapshot = node.snapshot, 0
        return snapshot

    def forget(self, key: int) -> None:
        """The sequence publishes nothing more."""
        self._cursors.pop(key, None)

    def clear(self) -> tuple[Int32s, list[int]]:
        """Forgets all content, also of referenced blocks. Returns the idle blocks and all state slots."""
        ids = self.idle_ids()
        snapshots = [node.snapshot for node in (*self._cold, *self._warm)]
        for node in self._nodes.values():
            node.alive = False
        tables = self._nodes, self._by_block, self._idle, self._idle_lasting, self._cold, self._warm
        for table in (*tables, self._sessions):
            table.clear()
        return ids, snapshots
