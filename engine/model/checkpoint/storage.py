"""How a logical weight lies in a file: kinds of storage, and the file tensors each of them has.

A quantized weight is two tensors, a payload and scales, which may even lie in different files. Everything
above this module speaks of logical weights (`TensorSpec`); only here and in `formats` both parts are visible.

Source: model_spec 4.1, 4.6.
"""

from __future__ import annotations

from enum import Enum

import msgspec

GROUP = 32
"""Elements along the input dimension that share a scale; FP8 blocks are as many rows high."""


class StorageKind(Enum):
    """How a logical weight lies in the file."""

    BF16 = "bf16"
    FP32 = "fp32"
    ANY_FLOAT = "bf16 or fp32"  # written as bf16; the publisher does not say
    FP8_BLOCK = "fp8 e4m3, a scale per 32 x 32 block"
    FP8_ROWS = "fp8 e4m3, a scale per row and 32 columns"
    MXFP4 = "fp4 e2m1, a scale per row and 32 columns"

    @property
    def is_quantized(self) -> bool:
        return self in (StorageKind.FP8_BLOCK, StorageKind.FP8_ROWS, StorageKind.MXFP4)


Shape = tuple[int, ...]


class TensorSpec(msgspec.Struct, frozen=True):
    """One logical weight. `other_shape` is a second shape with the same memory order that a file may use."""

    shape: Shape
    kind: StorageKind
    optional: bool = False
    other_shape: Shape | None = None


class StoredPart(msgspec.Struct, frozen=True):
    """One tensor of a file: a plain weight, or the payload or the scales of a quantized one.

    `dtypes` are safetensors dtype names; the first is what the writer uses.
    """

    name: str
    shape: Shape
    dtypes: tuple[str, ...]


_PAYLOAD_DTYPES: dict[StorageKind, tuple[str, ...]] = {
    StorageKind.BF16: ("BF16",),
    StorageKind.FP32: ("F32",),
    StorageKind.ANY_FLOAT: ("BF16", "F32", "F16"),
    StorageKind.FP8_BLOCK: ("F8_E4M3",),
    StorageKind.FP8_ROWS: ("F8_E4M3",),
    StorageKind.MXFP4: ("I8", "U8"),
}
_SCALE_DTYPES = ("F8_E8M0", "U8")


def scale_name(weight_name: str) -> str:
    """`X.weight` has its scales in `X.scale`."""
    return weight_name.removesuffix(".weight") + ".scale"


def scale_shape(shape: Shape, kind: StorageKind) -> Shape:
    """Shape of the scales of a quantized weight [rows, columns]; partial last blocks have a scale too."""
    rows, columns = shape
    return (-(-rows // GROUP) if kind is StorageKind.FP8_BLOCK else rows, -(-columns // GROUP))


def stored_parts(name: str, spec: TensorSpec) -> tuple[StoredPart, ...]:
    """The one or two file tensors of a logical weight, payload first."""
    shape, kind = spec.shape, spec.kind
    if kind is StorageKind.MXFP4:
        shape = (shape[0], shape[1] // 2)
    payload = StoredPart(name, shape, _PAYLOAD_DTYPES[kind])
    if not kind.is_quantized:
        return (payload,)
    return (payload, StoredPart(scale_name(name), scale_shape(spec.shape, kind), _SCALE_DTYPES))


def stored_tensor_count(specs: dict[str, TensorSpec]) -> int:
    """Tensors of a file with all of `specs`, scales counted separately."""
    return sum(2 if spec.kind.is_quantized else 1 for spec in specs.values())
