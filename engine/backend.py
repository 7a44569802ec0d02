"""What an engine runs on: a runner, the vocabulary it speaks, and how both are made.

Opening takes seconds and blocks, so it happens in a thread while the caller's loop goes on; a caller that is
cancelled meanwhile must not leave weights behind. Tests and benchmarks bring a backend of their own (a hashed
model on a simulated device), which is the only seam they need.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stepahead.devices.device import Device, OutOfMemoryError

from .config import EngineConfig
from .errors import ConfigError, NoDeviceMemoryError
from .model.runner import Runner, RunnerShape
from .scheduling.cost_curve import CostCurve
from .sizing import runner_shape
from .step_costs import CostsWanted, costs_wanted, step_costs
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .model.remote import RunnerFactory


@dataclasses.dataclass(frozen=True)
class Backend:
    """A runner on a device, and the tokenizer of its model (None: token ids only)."""

    runner: Runner
    device: Device | None
    tokenizer: Tokenizer | None
    costs: CostCurve | None = None  # of decode steps; None: every step verifies alike

    def close(self) -> None:
        """Frees the runner's memory and the device's threads. Waits for a busy device, a second at most."""
        try:
            self.runner.close()
        finally:
            if self.device is not None:
                self.device.close()


CPU_CACHE_BYTES = 1 << 30
"""Most memory the caches take on a CPU where `kv_blocks` does not say. It is touched when they are made."""

Opener = Callable[[EngineConfig], Awaitable[Backend]]


class OpenRunnerOptions(TypedDict, total=False):
    """What only the command line asks of an opening."""

    random_weights: bool
    on_tensor: Callable[[int, int], None]  # called in the opening thread


def model_opener(
    path: str | Path | None, device: str | Device, *, options: OpenRunnerOptions | None = None
) -> Opener:
    """Opens the model in a folder (None: the one that ships with us) on a device.

    `options` are further arguments of `model.opening.open_runner`; a device process takes none.
    """

    async def open_backend(config: EngineConfig) -> Backend:
        if config.cpu_backing == "process" and isinstance(device, Device):
            raise ConfigError("cpu_backing", "process", "'thread' with a device that is open already")
        if config.cpu_backing == "process" and device == "cpu":
            return await _open_in_process(path, config)
        opening = asyncio.get_running_loop().run_in_executor(None, _open, path, config, device, options or {})
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    return open_backend


async def _open_in_process(path: str | Path | None, config: EngineConfig) -> Backend:
    """A child of its own is the device: it loads the weights, which this process never holds."""
    from .model.remote import open_remote

    factory, shape, tokenizer, wanted = await asyncio.to_thread(_prepare_process, path, config)
    runner = await open_remote(factory, shape)
    costs = None if wanted is None else await runner.step_costs(wanted)
    return Backend(runner, None, tokenizer, costs)


def _prepare_process(
    path: str | Path | None, config: EngineConfig
) -> tuple[RunnerFactory, RunnerShape, Tokenizer, CostsWanted | None]:
    """Blocking. What is wrong with the files is found here, where an error still has its type."""
    from stepahead.devices.host_memory import host_memory

    from .model.opening import BUILT_IN, check_weights, describe, numerics_for, open_runner

    folder = BUILT_IN if path is None else Path(path)
    described = describe(folder, numerics_for("cpu", config.dtype, config.rounding))
    check_weights(described)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    shape = runner_shape(config, described.facts, _cache_bytes(host_memory().free - weights, "cpu"))
    factory = functools.partial(
        open_runner, folder, dtype=config.dtype, rounding=config.rounding, weights=config.weights
    )
    return factory, shape, described.tokenizer, costs_wanted(config, shape, folder, "cpu", "cpu")


def _open(
    path: str | Path | None, config: EngineConfig, device: str | Device, options: OpenRunnerOptions
) -> Backend:
    """Blocking. torch is imported below here and not above, so that importing the engine stays cheap."""
    from .model.opening import BUILT_IN, describe, numerics_for, open_sized_runner

    folder = BUILT_IN if path is None else Path(path)
    opened = _device(device)
    try:
        described = describe(folder, numerics_for(opened.torch_device, config.dtype, config.rounding))
        kind = opened.capabilities.kind

        def shape_for(free_bytes: int) -> RunnerShape:
            return runner_shape(config, described.facts, _cache_bytes(free_bytes, kind))

        runner = open_sized_runner(described, shape_for, opened, weights=config.weights, **options)
        name = opened.capabilities.name
        wanted = costs_wanted(config, runner.shape, folder, kind, name)
        costs = None if wanted is None else step_costs(runner, wanted)
        return Backend(runner, opened, described.tokenizer, costs)
    except OutOfMemoryError as error:
        name = opened.capabilities.name
        _forget_locals(error)
        opened.close()
        raise NoDeviceMemoryError(name, str(error)) from error
    except BaseException:
        opened.close()
        raise


def _forget_locals(error: BaseException) -> None:
    """Of all that led to it: they hold whatever had room until then, as long as somebody has the error."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _cache_bytes(free: int, kind: str) -> int:
    """What the caches may share. A CPU's memory belongs to the whole program: a default must be modest."""
    return min(free, CPU_CACHE_BYTES) if kind == "cpu" else free


def _device(device: str | Device) -> Device:
    if isinstance(device, Device):
        return device
    if device == "cpu":
        from stepahead.devices.cpu import CpuDevice

        return CpuDevice()
    kind, _, index = device.partition(":")
    if kind == "cuda" and (not index or index.isdecimal()):
        return _cuda_device(device, int(index or 0))
    raise ConfigError("device", device, "'cpu', 'cuda', 'cuda:N', or an open device")


def _cuda_device(asked: str, index: int) -> Device:
    from stepahead.devices.nvidia import NvidiaDevice
    from stepahead.devices.nvidia_errors import DeviceUnavailableError

    try:
        return NvidiaDevice(index)
    except DeviceUnavailableError as error:
        raise ConfigError("device", asked, f"a device that is here; {error.reason}") from error


def _close_unwanted(opening: asyncio.Future[Backend]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
