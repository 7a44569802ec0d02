"""The hashed device splits its decode rows by the confidences in its slots, as a real one does."""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.scheduling.verification import deal, survivals

from ..runner import StepPlan
from .slots import Slots, require


def redealt(plan: StepPlan, slots: Slots) -> StepPlan:
    """The plan with the rows of its decodes split anew, under the same total."""
    layout, decode = plan.layout, plan.layout.decode_count
    owners = layout.slots[:decode]
    spare = int(layout.query_lengths[:decode].sum()) - decode
    most = slots.most_drafts(owners)
    require(spare <= most.sum(), "step {} verifies {} drafts where {} are allowed", plan.step, spare, most)
    lengths = layout.query_lengths.copy()
    lengths[:decode] = deal(survivals(slots.confidences[owners]), most, spare)
    starts = np.zeros_like(lengths)
    np.cumsum(lengths[:-1], out=starts[1:])
    dealt = msgspec.structs.replace(layout, query_lengths=lengths, row_starts=starts)
    return msgspec.structs.replace(plan, layout=dealt)
