"""From a folder to a model in memory, or to a runner on a device.

The engine asks in two steps, because the size of the caches depends on the model and on what else the device
holds: `describe` reads only the configuration, `open_runner` loads the weights and allocates. Both are plain
functions of picklable arguments, so a child process can be told to do the second.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from stepahead.devices.device import Device
from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.selection import operations_for
from stepahead.engine.errors import EngineError
from stepahead.engine.text.tokenizer import Tokenizer

from .checkpoint.dummy import DummyReader
from .checkpoint.formats import QuantizedTensor
from .checkpoint.layout import tensor_specs
from .checkpoint.reader import CheckpointReader
from .checkpoint.storage import TensorSpec
from .runner import ModelFacts, RunnerShape
from .v41 import rehearsal
from .v41.config import ModelConfig, load_config
from .v41.model import Model
from .v41.numerics import Numerics, exact, parity
from .v41.runner import V41Runner, model_facts
from .v41.token_map import engram_token_map
from .v41.weights import StoredSource, load_weights

BUILT_IN = Path(__file__).parents[1] / "nano"
"""The folder of the small model that ships with the project."""

OnTensor = Callable[[int, int], None]
"""Called while weights load with the number of tensors read so far and in all."""


class ModelFilesError(EngineError):
    """A folder that does not hold a model this engine runs; the cause says what is wrong."""

    def __init__(self, folder: Path, problem: Exception) -> None:
        super().__init__(f"cannot open a model in {folder}: {problem}")
        self.folder = folder


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """What a folder says about its model, without the weights."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    numerics: Numerics
    facts: ModelFacts


@dataclasses.dataclass(frozen=True)
class OpenModel:
    """A model in memory with the vocabulary it speaks."""

    config: ModelConfig
    tokenizer: Tokenizer
    model: Model


def numerics_for(device: torch.device | str, dtype: str | None = None, rounding: str = "none") -> Numerics:
    """The types a model runs in, by name ("float32"). Where nobody chose: float32 on a CPU, whose steps are
    bound by dispatch and whose results others compare with; bfloat16 on a GPU, which has matrix units for it.
    With `rounding` "published", the published engine's, which are those of bfloat16.
    """
    if rounding == "published":
        return parity()
    usual = "float32" if torch.device(device).type == "cpu" else "bfloat16"
    return exact(getattr(torch, dtype or usual))


def describe(folder: Path | None, numerics: Numerics) -> ModelDescription:
    """Read configuration and vocabulary. None is the built-in model. Raises `ModelFilesError`."""
    folder = folder or BUILT_IN
    try:
        config = load_config(folder)
        tokenizer = Tokenizer.from_file(folder, compatibility=config.tokenizer_compatibility)
    except (OSError, ValueError) as error:
        raise ModelFilesError(folder, error) from error
    numerics = dataclasses.replace(numerics, fp4_entries=config.use_fp4_sparse_kv)
    return ModelDescription(folder, config, tokenizer, numerics, model_facts(config, numerics))


def load_model(
    described: ModelDescription,
    device: torch.device,
    *,
    operations: Operations = REFERENCE,
    random_weights: bool = False,
    keep_quantized: bool = False,
    on_tensor: OnTensor = lambda done, total: None,
) -> Model:
    """Load the weights, or draw random ones. Raises `ModelFilesError`.

    With `keep_quantized` matrices stay in memory as the checkpoint stores them: for operations that expand
    them in registers, and for models that do not fit otherwise.
    """
    config = described.config
    try:
        source = DummyReader(config) if random_weights else _checkpoint(described.folder, config)
        token_map = _token_map(config, described.tokenizer)
        reporting = _ReportingSource(source, len(source.names()), on_tensor)
        weights = load_weights(config, reporting, described.numerics, device, keep_quantized=keep_quantized)
    except (OSError, ValueError) as error:
        raise ModelFilesError(described.folder, error) from error
    placed_map = None if token_map is None else token_map.to(device)
    return Model(config, weights, described.numerics, token_map=placed_map, operations=operations)


def check_weights(described: ModelDescription) -> None:
    """Compare the files with the configuration, without reading a weight. Raises `ModelFilesError`."""
    try:
        _checkpoint(described.folder, described.config)
    except (OSError, ValueError) as error:
        raise ModelFilesError(described.folder, error) from error


def open_model(
    folder: Path | None = None,
    *,
    random_weights: bool = False,
    dtype: torch.dtype = torch.float32,
    on_tensor: OnTensor = lambda done, total: None,
) -> OpenModel:
    """Load configuration, vocabulary and weights on the CPU, computing in `dtype` throughout.

    With `random_weights` only the first two are read from the folder. Raises `ModelFilesError`.
    """
    described = describe(folder, exact(dtype))
    model = load_model(described, torch.device("cpu"), random_weights=random_weights, on_tensor=on_tensor)
    return OpenModel(described.config, described.tokenizer, model)


def open_runner(
    folder: Path | None,
    shape: RunnerShape,
    device: Device,
    *,
    dtype: str | None = None,
    rounding: str = "none",
    weights: str | None = None,
    random_weights: bool = False,
    on_tensor: OnTensor = lambda done, total: None,
) -> V41Runner:
    """Load a model onto a device and allocate caches of that shape. Takes seconds; call it off the loop.

    `dtype`, `rounding` and `weights` as in `EngineConfig`. Raises `ModelFilesError`, or the device's
    out-of-memory error.
    """
    return open_sized_runner(
        describe(folder, numerics_for(device.torch_device, dtype, rounding)),
        lambda free_bytes: shape,
        device,
        weights=weights,
        random_weights=random_weights,
        on_tensor=on_tensor,
    )


def open_sized_runner(
    described: ModelDescription,
    shape_for: Callable[[int], RunnerShape],
    device: Device,
    *,
    weights: str | None = None,
    random_weights: bool = False,
    on_tensor: OnTensor = lambda done, total: None,
) -> V41Runner:
    """Load a model, and give its caches the shape for the bytes that weights and steps leave.

    `weights` as in `EngineConfig`. Where the device measures memory, the largest steps are run once to learn
    theirs. Raises what `shape_for` does, `ModelFilesError`, or the device's out-of-memory error.
    """
    numerics = described.numerics
    operations = operations_for(device.capabilities, numerics.dtype, numerics.quantized)
    with device.placing():
        model = load_model(
            described,
            torch.device(device.torch_device),
            operations=operations,
            random_weights=random_weights,
            keep_quantized=keeps_stored(weights, described, operations, device.memory().free),
            on_tensor=on_tensor,
        )
        return sized_runner(model, described.facts, shape_for, device)


def keeps_stored(choice: str | None, described: ModelDescription, operations: Operations, free: int) -> bool:
    """Whether matrices stay as the checkpoint stores them; `free` bytes are the device's.

    Expanded ones are multiplied faster while they fit; two to four times as large, a real model's do not.
    """
    if choice is not None:
        return choice == "stored"
    size = described.numerics.dtype.itemsize
    expanded = sum(math.prod(spec.shape) * size for spec in tensor_specs(described.config).values())
    return operations.expands_weights and expanded > free // 2


def sized_runner(
    model: Model, facts: ModelFacts, shape_for: Callable[[int], RunnerShape], device: Device
) -> V41Runner:
    """The runner of a model that is on the device, inside `Device.placing`; see `open_sized_runner`."""
    shape = shape_for(device.memory().free)
    if device.capabilities.measures_memory:
        needs = _rehearse(model, facts, shape, device)
        shape = shape_for(device.memory().free - needs.reserve(graphs=shape.graph_sequences > 0))
    runner = V41Runner(model, facts, shape, device)
    runner.capture()
    return runner


def _rehearse(model: Model, facts: ModelFacts, shape: RunnerShape, device: Device) -> rehearsal.StepNeeds:
    runner = V41Runner(model, facts, rehearsal.small(shape), device)
    try:
        return rehearsal.measure(runner.run_now, runner.shape, device)
    finally:
        runner.close()


class _ReportingSource:
    """Passes tensors through and tells how far the loading is."""

    def __init__(self, source: StoredSource, total: int, on_tensor: OnTensor) -> None:
        self._source, self._total, self._on_tensor, self._done = source, total, on_tensor, 0

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._source.read(name, dtype)
        self._report()
        return tensor

    def read_stored(self, name: str, spec: TensorSpec) -> Tensor | QuantizedTensor:
        stored = self._source.read_stored(name, spec)
        self._report()
        return stored

    def _report(self) -> None:
        self._done += 1
        self._on_tensor(self._done, self._total)

    def __contains__(self, name: str) -> bool:
        return name in self._source


def _checkpoint(folder: Path, config: ModelConfig) -> CheckpointReader:
    reader = CheckpointReader(folder)
    reader.verify(tensor_specs(config), allow_unquantized=True)
    return reader


def _token_map(config: ModelConfig, tokenizer: Tokenizer) -> Tensor | None:
    """Compressed ids for the n-gram memory, where the model has one that compresses."""
    if not config.engram_layer_ids or not config.engram_compressed_vocab_size:
        return None
    return torch.from_numpy(engram_token_map(config, tokenizer.library))
