"""A CUDA device: streams that only launch, graphs that replay as one launch, tickets that nobody waits for.

The host must never wait for the card and the card never for the host. So work runs inside `enqueue` and only
launches kernels (a guard turns a wait into an error, `nvidia_stream.py`), and what the card has to tell comes
through page-locked memory behind a mark. A busy event loop looks for the mark, and a thread asleep in the
driver posts it to a loop that sleeps (`nvidia_watch.py`). Rejected: a child process as for the CPU device;
launches of a captured step take a few microseconds, less than one message to a child.

Threads need the interpreter's lock to tell anything, and a busy event loop gives the lock up only when asked
for a switch interval: 5 ms by default, several steps. So an open device asks for a shorter one
(`SWITCH_SECONDS`), which costs one switch of threads a step at most; the last to close puts the old one back.

One device object is one engine's: it owns its streams, one memory pool for all its graphs (they replay one
after another on one stream, so what one leaves behind another may overwrite), and their end.

Invariant: graphs are freed before the streams they were captured on, and everything is freed once.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .device import (
    Capabilities,
    Device,
    DeviceError,
    Event,
    Graph,
    MemoryInfo,
    StagingBuffer,
    Stream,
    Ticket,
    Work,
    WorkObserver,
)
from .nvidia_errors import DeviceUnavailableError, launch_error
from .nvidia_stream import NAME, NvidiaStream
from .nvidia_watch import of_mark
from .poison import closed_error

if TYPE_CHECKING:
    import torch

SWITCH_SECONDS = 5e-5
"""How long a mark may wait for the interpreter's lock. Process-wide, while a device is open."""
CLOSE_SECONDS = 1.0
"""How long closing waits for what runs. A card that takes longer is left to the process's end."""


class NvidiaDevice(Device):
    """One card, by its CUDA index. Raises `DeviceUnavailableError` where there is none."""

    def __init__(self, index: int = 0, *, guard: bool = True) -> None:
        """`guard`: work that waits for the card is an error. Process-wide while a piece launches, see
        `nvidia_stream.py`; switch it off where other threads of the program use torch on a card.
        """
        import torch

        _check(index)
        self._torch, self._index, self._guard = torch, index, guard
        properties = torch.cuda.get_device_properties(index)
        self._name, self._architecture = properties.name, (properties.major, properties.minor)
        _silence_debug_mode()
        self._streams: dict[str, NvidiaStream] = {}
        self._observer: WorkObserver | None = None
        self._graphs: list[_NvidiaGraph] = []
        self._pool: Any = None
        self._closed = False
        _SWITCHING.shorten()
        self._finalizer = weakref.finalize(self, _stop, self._streams)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="nvidia",
            name=self._name,
            runs_on_enqueue=True,
            graphs=True,
            pinned_staging=True,
            measures_memory=True,
            architecture=self._architecture,
        )

    @property
    def torch_device(self) -> str:
        return f"cuda:{self._index}"

    @property
    def compute(self) -> Stream:
        return self.stream("compute")

    def stream(self, name: str) -> NvidiaStream:
        if name not in self._streams:
            self._check_open()
            stream = NvidiaStream(name, self._index, guard=self._guard, high_priority=name != "compute")
            if self._observer is not None:
                stream.time_work(self._observer)
            self._streams[name] = stream
        return self._streams[name]

    def watch(self, event: Event, loop: AbstractEventLoop) -> Ticket:
        mark = of_mark(event)
        if self._closed:
            ticket = Ticket()
            ticket.settle(closed_error(NAME))
            return ticket
        return self._streams[mark.stream].watch(mark, loop)

    def staging(self, size: int) -> StagingBuffer:
        self._check_open()
        try:
            return _PinnedBuffer(self._torch.zeros(size, dtype=self._torch.uint8, pin_memory=size > 0))
        except RuntimeError as error:
            raise launch_error("page-locked memory", error) from error

    @contextmanager
    def placing(self) -> Iterator[None]:
        try:
            with self._computing():
                yield
        except RuntimeError as error:
            if isinstance(error, DeviceError):
                raise
            if not isinstance(error, self._torch.OutOfMemoryError | self._torch.AcceleratorError):
                raise
            raise launch_error("loading", error) from error

    def _computing(self) -> AbstractContextManager[None]:
        self._check_open()
        stream: AbstractContextManager[None] = self._torch.cuda.stream(self.stream("compute").cuda)
        return stream

    def capture(self, work: Work, label: str = "") -> Graph:
        if self._pool is None:
            self._pool = self._torch.cuda.graph_pool_handle()
        graph = self._torch.cuda.CUDAGraph()
        try:
            with self._computing():
                self.stream("compute").launch(work)  # libraries initialise themselves at a first call
                self._record(graph, work)
        except Exception as error:
            raise launch_error(f"capture of {label or 'work'}", error) from error
        kept = _NvidiaGraph(graph)
        self._graphs.append(kept)
        return kept

    def _record(self, graph: torch.cuda.CUDAGraph, work: Work) -> None:
        """Only this thread is held to what a capture allows; another engine's goes on meanwhile."""
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # the capture is void, and says so again
                graph.capture_end()
            self._abandon_pool()
            raise
        graph.capture_end()

    def _abandon_pool(self) -> None:
        """torch keeps recording into the pool of a failed capture, and gives no memory back meanwhile."""
        end = getattr(self._torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):
                end(self._index, self._pool)
        self._pool = None

    def memory(self) -> MemoryInfo:
        """What torch keeps for later allocations counts as free: it will be given to whoever asks next."""
        cuda, index = self._torch.cuda, self._index
        free, total = cuda.mem_get_info(index)
        kept = cuda.memory_reserved(index) - cuda.memory_allocated(index)
        return MemoryInfo(total=total, free=free + kept, kept=kept)

    def bytes_needed(self, work: Work) -> int:
        cuda, index = self._torch.cuda, self._index
        with self.placing():
            cuda.reset_peak_memory_stats(index)
            before = cuda.memory_allocated(index)
            work()
            return int(cuda.max_memory_allocated(index)) - int(before)

    def time_work(self, observer: WorkObserver) -> None:
        self._observer = observer
        for stream in self._streams.values():
            stream.time_work(observer)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        _SWITCHING.restore()
        for stream in self._streams.values():
            stream.close(CLOSE_SECONDS)
        for graph in self._graphs:
            graph.release()
        self._graphs.clear()
        self._pool = None
        with suppress(RuntimeError):  # a card that failed gives nothing back before the process ends
            self._torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(NAME)


def _stop(streams: dict[str, NvidiaStream]) -> None:
    """For a device that was lost without being closed: its threads end, and nobody waits for them."""
    for stream in streams.values():
        stream.stop()
    _SWITCHING.restore()


class _SwitchInterval:
    """Of the interpreter, short while at least one device is open."""

    def __init__(self) -> None:
        self._lock, self._users, self._usual = threading.Lock(), 0, 0.0

    def shorten(self) -> None:
        with self._lock:
            if self._users == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SWITCH_SECONDS))
            self._users += 1

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                sys.setswitchinterval(self._usual)


_SWITCHING = _SwitchInterval()


class _NvidiaGraph(Graph):
    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph

    def replay(self) -> None:
        if self._graph is None:
            raise closed_error(NAME)
        self._graph.replay()

    def release(self) -> None:
        if self._graph is not None:
            with suppress(RuntimeError):
                self._graph.reset()
            self._graph = None


class _PinnedBuffer(StagingBuffer):
    __slots__ = ("_bytes",)

    def __init__(self, memory: torch.Tensor) -> None:
        self._bytes: npt.NDArray[np.uint8] = memory.numpy()

    @property
    def host(self) -> npt.NDArray[np.uint8]:
        return self._bytes


def _check(index: int) -> None:
    import torch

    asked = f"cuda:{index}"
    if torch.version.cuda is None:
        raise DeviceUnavailableError(asked, f"torch {torch.__version__} was built without CUDA")
    count = torch.cuda.device_count()
    if count == 0:
        raise DeviceUnavailableError(asked, "no NVIDIA card is visible to this process")
    if index >= count:
        raise DeviceUnavailableError(asked, f"indices here are 0 to {count - 1}")


def _silence_debug_mode() -> None:
    """Its first use warns that it does not detect everything, which its user here knows."""
    import torch

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        torch.cuda.set_sync_debug_mode(mode)
