"""Images of a request: fetched, decoded, measured and cut into patches, within limits.

A picture comes from a stranger and is decoded by a large C library, so every limit is checked before the work
it limits: how many, how many bytes, how many pixels by the file's own header. Addresses outside are fetched
only by a fetcher that whoever runs the server passes in; `check_public_address` is what it should ask before
it connects, since a name may resolve to anything.

The grid follows the published rules (recipe_spec 2.5, model_spec 6): cells of 42 pixels, three patches of 14
to a side, rows ended by a newline position, a start and an end position, at most 1,024 in all.
"""

from __future__ import annotations

import io
import ipaddress
import math
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
import numpy as np
import numpy.typing as npt

from .conversation import BytesImage, DataUrlImage, ImageSource
from .errors import ConversionError
from .protocols.image_parts import decode_base64

PATCH = 14
MERGE = 3
CELL = PATCH * MERGE
MIN_PIXELS = 544 * 544
MAX_TOKENS = 1024
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits. Sizes are bytes, lengths pixels."""

    max_images: int = 32
    """Of one request."""
    max_bytes: int = 20 * 2**20
    """Of one encoded file."""
    max_total_bytes: int = 64 * 2**20
    """Of all files of a request."""
    max_side: int = 8192
    max_pixels: int = 50_000_000
    """By the file's header, before anything is decoded: a small file can claim to be gigabytes."""


class ImageError(ConversionError):
    """An image that cannot be used; says which one, by its place in the request."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path, self.problem = path, problem


class Grid(msgspec.Struct, frozen=True):
    """Cells an image becomes, and the size in pixels it is resized to (padded up to whole cells)."""

    rows: int
    columns: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        """Positions in the prompt: a newline behind each row, a start and an end."""
        return self.rows * (self.columns + 1) + 2


class PreparedImage(msgspec.Struct, frozen=True):
    """`patches` is float32 [rows * 3 * columns * 3, 3 * 14 * 14], channels first, in [-1, 1]."""

    grid: Grid
    patches: Any


def image_grid(width: int, height: int) -> Grid:
    """The grid of an image of this size. Exact: the prompt's positions depend on it."""
    scaled_width, scaled_height = _up(width), _up(height)
    if 0 < width * height < MIN_PIXELS:
        scale = math.sqrt(MIN_PIXELS / (width * height))
        scaled_width, scaled_height = _up(int(width * scale)), _up(int(height * scale))
        if scaled_width * scaled_height < MIN_PIXELS:  # a short side lost a fraction worth many pixels
            if scaled_width < scaled_height:
                scaled_height = _up(-(-MIN_PIXELS // scaled_width))
            else:
                scaled_width = _up(-(-MIN_PIXELS // scaled_height))
    grid = _grid(scaled_height, scaled_width)
    return grid if grid.tokens <= MAX_TOKENS else _shrunk(width, height)


def _up(length: int) -> int:
    return -(-max(length, 1) // PATCH) * PATCH


def _grid(height: int, width: int) -> Grid:
    return Grid(-(-height // CELL), -(-width // CELL), height, width)


def _shrunk(width: int, height: int) -> Grid:
    """The largest grid of nearly this shape that has no more than 1,024 positions."""
    aspect = height / width
    columns = math.sqrt((MAX_TOKENS - 2) / aspect + 0.25) - 0.5
    rows = columns * aspect
    if columns < 1:
        return _grid((MAX_TOKENS - 2) // 2 * CELL, CELL)
    if rows < 1:
        return _grid(CELL, (MAX_TOKENS - 3) * CELL)
    scale = min(math.floor(columns) * CELL / width, math.floor(rows) * CELL / height)
    return _grid(_down(height * scale), _down(width * scale))


def _down(length: float) -> int:
    return max(PATCH, int(length // PATCH) * PATCH)


class Fetcher(Protocol):
    """Gets an external image. Whoever passes one in decides what may be reached."""

    def __call__(self, url: str, max_bytes: int) -> Awaitable[bytes]: ...


def check_public_address(address: str) -> None:
    """Raises `ValueError` for an address that is not of the public internet.

    For a fetcher to ask of every address a name resolves to, and again after every redirect; it must then
    connect to that very address. Private, loopback, link-local and reserved ranges are where a server's own
    neighbours live.
    """
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    if not (mapped or parsed).is_global or parsed.is_multicast:
        raise ValueError(f"{address} is not a public address")


async def load_images(
    sources: Sequence[ImageSource], options: ImageOptions, fetcher: Fetcher | None = None
) -> list[bytes]:
    """The encoded files. Raises `ImageError`."""
    if len(sources) > options.max_images:
        raise ImageError(sources[-1].path, f"more than {options.max_images} images in a request")
    files: list[bytes] = []
    for source in sources:
        data = await _load(source, options, fetcher)
        if len(data) > options.max_bytes:
            raise ImageError(source.path, f"the image is larger than {options.max_bytes} bytes")
        files.append(data)
        if sum(map(len, files)) > options.max_total_bytes:
            raise ImageError(source.path, f"the images are larger than {options.max_total_bytes} bytes")
    return files


async def _load(source: ImageSource, options: ImageOptions, fetcher: Fetcher | None) -> bytes:
    if isinstance(source, BytesImage):
        return source.data
    if isinstance(source, DataUrlImage):
        return _decoded(source, options)
    if fetcher is None:
        raise ImageError(source.path, "external image addresses are not allowed here")
    try:
        return await fetcher(source.url, options.max_bytes)
    except Exception as error:
        raise ImageError(source.path, f"the image could not be fetched: {error}") from error


def _decoded(source: DataUrlImage, options: ImageOptions) -> bytes:
    head, _, data = source.data_url.partition(",")
    if len(data) > 2 * options.max_bytes:
        raise ImageError(source.path, f"the image is larger than {options.max_bytes} bytes")
    try:
        return decode_base64(data) if head.endswith(";base64") else unquote_to_bytes(data)
    except ValueError as error:
        raise ImageError(source.path, "Invalid base64 data") from error


def prepare_image(data: bytes, options: ImageOptions, path: str = "") -> PreparedImage:
    """Decodes, resizes and cuts one file. Takes tens of milliseconds: run it off the loop.

    Raises `ImageError`. Needs Pillow (`stepahead[images]`).
    """
    picture = _opened(data, options, path)
    grid = image_grid(*picture.size)
    try:
        pixels = np.asarray(picture.convert("RGB").resize((grid.width, grid.height), _bicubic()))
    except Exception as error:  # a broken file ends in whatever the decoder of its format stumbles over
        raise ImageError(path, f"the image cannot be decoded: {error}") from error
    return PreparedImage(grid, _patches(pixels, grid))


def _opened(data: bytes, options: ImageOptions, path: str) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(path, "an image of so many pixels is too large") from error
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise ImageError(path, "the image has none of the formats webp, png, jpeg and gif") from error
    width, height = picture.size
    if max(width, height) > options.max_side or width * height > options.max_pixels:
        raise ImageError(path, f"an image of {width} x {height} pixels is too large")
    return picture


def _bicubic() -> Any:
    from PIL import Image

    return Image.Resampling.BICUBIC


def _patches(pixels: npt.NDArray[np.uint8], grid: Grid) -> npt.NDArray[np.float32]:
    """Pixels in [-1, 1], padded with zeros to whole cells, patch by patch in rows."""
    height, width = grid.rows * CELL, grid.columns * CELL
    padded = np.zeros((height, width, 3), dtype=np.float32)
    padded[: pixels.shape[0], : pixels.shape[1]] = pixels.astype(np.float32) / 127.5 - 1.0
    cut = padded.reshape(height // PATCH, PATCH, width // PATCH, PATCH, 3)
    return cut.transpose(0, 2, 4, 1, 3).reshape(-1, 3 * PATCH * PATCH)
