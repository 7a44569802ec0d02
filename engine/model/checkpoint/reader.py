"""Read a published checkpoint from disk, tensor by tensor, without ever holding it twice.

Files are memory-mapped: what is not converted is a view of the page cache, what is dequantized is allocated
once. A tensor is handed out once; a second request would silently double the memory of the largest part of
the process, so it is refused. A weight and its scales may lie in different files, and names may carry a
`model.` prefix.

Source: model_spec 4.1, 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stepahead.devices.kernels.reference.quantization import UE8M0_NAN

from .errors import CheckpointError, CheckpointProblems
from .formats import QuantizedTensor, quantize
from .index import locate
from .storage import Shape, StorageKind, StoredPart, TensorSpec, scale_name, stored_parts

_FLOAT_DTYPES = {"BF16", "F32", "F16", "F64"}


class CheckpointReader:
    """The tensors of one checkpoint directory (or one `.safetensors` file).

    `read` and `read_quantized` consume a tensor. Not safe for use by several threads at once.
    Raises `CheckpointError` without a checkpoint, and when its index and files disagree.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: dict[Path, Any] = {}
        self._stored = locate(self.path)  # name in the file, and the file, by name without prefix
        self._scales = {n for n in self._stored if n.endswith(".scale")}
        self._read: set[str] = set()
        self._open_files()

    def __contains__(self, name: str) -> bool:
        return name in self._stored and name not in self._scales

    def names(self) -> tuple[str, ...]:
        """Logical weights in the checkpoint, without scales, tied copies and prefix."""
        return tuple(name for name in self._stored if name not in self._scales)

    def unread(self) -> tuple[str, ...]:
        """Logical weights nobody has consumed yet."""
        return tuple(name for name in self.names() if name not in self._read)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """One weight, dequantized, on the CPU. Raises `CheckpointError` if it is missing or was read before.

        A plain weight already in `dtype` is a view of the mapped file.
        """
        self._consume(name)
        if scale_name(name) in self._stored:
            return self._load_quantized(name).dequantize(dtype)
        weight = _aligned(self._load(name)).to(dtype)
        # The only 4-D weight is the patch projection, which files store as a convolution or flat.
        return weight.flatten(1) if weight.ndim == 4 else weight

    def read_quantized(self, name: str) -> QuantizedTensor:
        """One weight as it is stored, a view of the mapped file. `ValueError` for a plain weight."""
        if name in self and scale_name(name) not in self._stored:
            raise ValueError(f"{name} is stored unquantized; use read()")
        self._consume(name)
        return self._load_quantized(name)

    def read_stored(self, name: str, spec: TensorSpec) -> Tensor | QuantizedTensor:
        """One weight in the storage of `spec`, quantizing it only if the file has it in plain floats."""
        if scale_name(name) in self._stored:
            return self.read_quantized(name)
        weight = self.read(name, torch.float32 if spec.kind.is_quantized else self._plain_dtype(spec))
        return quantize(weight, spec.kind) if spec.kind.is_quantized else weight.reshape(spec.shape)

    def verify(self, specs: Mapping[str, TensorSpec], *, allow_unquantized: bool = False) -> None:
        """Compare the whole checkpoint with a layout and raise one `CheckpointError` naming all differences.

        With `allow_unquantized` a weight whose layout is quantized may be stored in plain floats. Reads the
        bytes of all scales (3 % of a checkpoint), nothing else.
        """
        problems = CheckpointProblems()
        known: set[str] = set()
        for name, spec in specs.items():
            parts = stored_parts(name, spec)
            if allow_unquantized and spec.kind.is_quantized and parts[1].name not in self._stored:
                parts = (StoredPart(name, spec.shape, tuple(_FLOAT_DTYPES)),)
            known.update(part.name for part in parts)
            if spec.optional and name not in self._stored:
                continue
            for part in parts:
                self._check_part(part, spec, problems)
        problems.extra += sorted(set(self._stored) - known)
        if problems:
            raise CheckpointError(self.path, problems)

    def _check_part(self, part: StoredPart, spec: TensorSpec, problems: CheckpointProblems) -> None:
        if part.name not in self._stored:
            problems.missing.append(part.name)
            return
        shape, dtype = self._header(part.name)
        if shape not in (part.shape, spec.other_shape):
            problems.misshapen.append(f"{part.name}: {list(shape)}, expected {list(part.shape)}")
        if dtype not in part.dtypes:
            problems.wrong_dtype.append(f"{part.name}: {dtype}, expected {' or '.join(part.dtypes)}")
        elif part.name in self._scales and _has_nan_scale(self._load(part.name)):
            problems.nan_scale.append(part.name)

    def _plain_dtype(self, spec: TensorSpec) -> torch.dtype:
        return torch.float32 if spec.kind is StorageKind.FP32 else torch.bfloat16

    def _consume(self, name: str) -> None:
        if name not in self:
            raise CheckpointError(self.path, CheckpointProblems(missing=[name]))
        if name in self._read:
            raise CheckpointError(self.path, CheckpointProblems(already_read=[name]))
        self._read.add(name)

    def _load_quantized(self, name: str) -> QuantizedTensor:
        payload, scales = _aligned(self._load(name)), self._load(scale_name(name))
        if payload.dtype in (torch.int8, torch.uint8):
            shape = (payload.shape[0], payload.shape[1] * 2)
            return QuantizedTensor(
                payload.view(torch.uint8), scales.view(torch.uint8), StorageKind.MXFP4, shape
            )
        per_row = scales.shape[0] == payload.shape[0] and payload.shape[0] > 1
        kind = StorageKind.FP8_ROWS if per_row else StorageKind.FP8_BLOCK
        return QuantizedTensor(payload, scales.view(torch.uint8), kind, tuple(payload.shape))

    def _header(self, name: str) -> tuple[Shape, str]:
        stored, file = self._stored[name]
        entry = self._files[file].get_slice(stored)
        return tuple(entry.get_shape()), entry.get_dtype()

    def _load(self, name: str) -> Tensor:
        stored, file = self._stored[name]
        tensor: Tensor = self._files[file].get_tensor(stored)
        return tensor

    def _open_files(self) -> None:
        """Map all files, and compare their headers with the index."""
        problems = CheckpointProblems()
        headers: dict[Path, set[str]] = {}
        for file in sorted({file for _, file in self._stored.values()}):
            try:
                self._files[file] = safe_open(file, framework="pt")
                headers[file] = set(self._files[file].keys())
            except (OSError, SafetensorError) as error:
                problems.unreadable.append(f"{file.name}: {error}")
        for name, (stored, file) in self._stored.items():
            if file in headers and stored not in headers[file]:
                problems.missing.append(f"{name}: listed in the index, absent from {file.name}")
        if problems:
            raise CheckpointError(self.path, problems)


def _has_nan_scale(scales: Tensor) -> bool:
    return bool((scales.view(torch.uint8) == UE8M0_NAN).any())


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy when the file put it at an address its dtype does not allow."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor
