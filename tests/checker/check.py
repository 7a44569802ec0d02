"""One script, one verdict."""

from __future__ import annotations

import re
import signal
import traceback
from types import FrameType

import msgspec

from .drive import Run, drive
from .judge import judge
from .script import Script

WALL_SECONDS = 20.0
"""Real time after which a run counts as spinning. A run takes some milliseconds."""


class SpinningError(BaseException):
    """The loop is busy for ever without virtual time moving. Not an `Exception`: nobody may catch it."""


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong with a run. `kind` stays the same while a script shrinks; "" is a right run."""

    kind: str
    report: str
    run: Run | None = None

    @property
    def right(self) -> bool:
        return not self.kind


def check(script: Script) -> Verdict:
    """Drives and judges; every exception that leaves the drive is a finding."""
    before = signal.signal(signal.SIGALRM, _spinning)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    try:
        run = drive(script)
        complaints = judge(run)
    except (Exception, SpinningError) as error:
        return Verdict(_kind(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    if complaints:
        return Verdict(_kind(complaints[0]), "\n".join(complaints), run)
    return Verdict("", "", run)


def _kind(complaint: str) -> str:
    """The complaint without the numbers and names that change when a script is made smaller."""
    words = re.sub(r"client \d+|the fresh request at the end|choice \d+", "who", complaint.split("\n")[0])
    return re.sub(r"[\d.]+|\[.*|\(.*|'.*|\{.*", "", words)[:60].strip()


def _spinning(number: int, frame: FrameType | None) -> None:
    raise SpinningError("the loop spins")
