"""A plan's state copies and table entries, packed for the one operation that makes them.

They go to the device in one array: in a captured step at the head of what the host gives it anyway
(`captured_inputs.py`), else in an array of their own. Copies count one after another, and the operation makes
those of a call at once; so what reads the destination of an earlier copy needs a call of its own. That is
rare (a state kept and asked for in the same plan), and steps with such copies, or with more than a captured
step has room for, are fixed up by a piece of work of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.fix_ups import FixUps

from ..runner import Int32s, Int64s, StepPlan
from .caches import Caches, state_rings
from .config import ModelConfig
from .host_arrays import to_device
from .slots import SlotState

_COUNTS = 2


class FixUpRoom(NamedTuple):
    """How an array of int64 is divided: counts, copies, entries. Copies fill 16 bytes, so all are aligned."""

    copies: int
    entries: int

    @property
    def size(self) -> int:
        return _COUNTS + 2 * self.copies + 3 * self.entries

    def holds(self, plan: StepPlan) -> bool:
        """Whether one call can make the plan's fix-ups from here."""
        copies, entries = plan.state_copies, plan.table_updates
        if len(copies) > self.copies or len(entries) > self.entries:
            return False
        return len(copies) <= 1 or len(independent_copies(copies)) == 1

    def write(self, packed: Int64s, copies: Int32s, entries: Int32s) -> None:
        """Unused places keep what they hold."""
        packed[0], packed[1] = len(copies), len(entries)
        begin = _COUNTS + 2 * self.copies
        packed[_COUNTS : _COUNTS + copies.size] = copies.reshape(-1)
        packed[begin : begin + entries.size] = entries.reshape(-1)

    def read(self, packed: Tensor) -> FixUps:
        """Views of the array on the device."""
        counts, copies, entries = packed.split([_COUNTS, 2 * self.copies, 3 * self.entries])
        return FixUps(counts, copies.view(-1, 2), entries.view(-1, 3))


class FixUpper:
    """Makes fix-ups of one runner's slots. On the compute stream."""

    def __init__(self, config: ModelConfig, caches: Caches, state: SlotState, operations: Operations) -> None:
        self._operations, self._table = operations, state.table
        self._pools = operations.open_state_pools(state_rings(config, caches))

    def make(self, plan: StepPlan) -> None:
        """All that the plan asks for, in order; nothing is launched where it asks for nothing."""
        runs, entries = independent_copies(plan.state_copies), plan.table_updates
        for copies in runs[:-1]:
            self._give(copies, entries[:0])
        if runs or entries.size:
            self._give(runs[-1] if runs else plan.state_copies, entries)

    def _give(self, copies: Int32s, entries: Int32s) -> None:
        room = FixUpRoom(len(copies), len(entries))
        packed = np.empty(room.size, dtype=np.int64)
        room.write(packed, copies, entries)
        self.make_given(room.read(to_device(packed, self._table.device)))

    def make_given(self, fix_ups: FixUps) -> None:
        self._operations.fix_up_(self._pools, self._table, fix_ups)


def independent_copies(copies: Int32s) -> list[Int32s]:
    """Copies `[n, 2]` of (source, destination), in runs that may be made at once if all of a run are read
    before any is written: nobody reads or writes what an earlier one of the run writes.
    """
    runs: list[Int32s] = []
    begin, written = 0, set[int]()
    for place, (source, destination) in enumerate(copies.tolist()):
        if source in written or destination in written:
            runs.append(copies[begin:place])
            begin, written = place, set()
        written.add(destination)
    return [*runs, copies[begin:]] if len(copies) else []
