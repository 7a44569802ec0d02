"""Images: the published grid, patches, and every limit before the work it limits."""

from __future__ import annotations

import base64
import contextlib
import io
import random
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest

from stepahead.recipe.conversation import BytesImage, DataUrlImage, UrlImage
from stepahead.recipe.images import (
    ImageError,
    ImageOptions,
    check_public_address,
    image_grid,
    load_images,
    prepare_image,
)

from . import golden
from .official import peer

Image = pytest.importorskip("PIL.Image")
LIMITS = ImageOptions()


def picture(width: int, height: int, kind: str = "PNG", color: Any = (255, 0, 0)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, kind)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    end = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + chunk + end


def test_grids_are_the_official_ones() -> None:
    (case,) = golden.load("image_tokens")
    assert [image_grid(*size).tokens for size in case["input"]["sizes"]] == case["expect"]


def test_grids_of_random_sizes_are_the_official_ones() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        long, short, any_side = rng.randint(1, 100_000), rng.randint(1, 60), rng.randint(1, 4000)
        for size in ((long, short), (short, long), (any_side, rng.randint(1, 4000))):
            official = peer.MultiModalData([peer.ImageInfo(b"", *size)]).image_token_adjustment() + 1
            assert image_grid(*size).tokens == official, size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_picture_becomes_patches(kind: str) -> None:
    prepared = prepare_image(picture(700, 500, kind), LIMITS)
    grid = prepared.grid
    assert (grid.height, grid.width) == (504, 700)
    assert prepared.patches.shape == (grid.rows * grid.columns * 9, 3 * 14 * 14)
    assert prepared.patches.dtype == np.float32
    red, green, blue = prepared.patches[0].reshape(3, 14 * 14)
    assert red.mean() > 0.95
    assert max(green.mean(), blue.mean()) < -0.95
    assert not prepared.patches[-1].any()  # 700 is no whole number of cells: the rest is zeros


def test_patches_lie_in_rows() -> None:
    """Left to right, then down; the left half is black and the right half white."""
    file = io.BytesIO()
    drawn = Image.new("L", (840, 840))
    drawn.paste(255, (420, 0, 840, 840))
    drawn.save(file, "PNG")
    prepared = prepare_image(file.getvalue(), LIMITS)
    means = prepared.patches.mean(axis=1).reshape(60, 60)
    assert (means[:, :29] < -0.9).all()
    assert (means[:, 31:] > 0.9).all()


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (12_000, 12_000), (8000, 8000), (9000, 10)])
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="too large"):
            prepare_image(bomb(width, height), LIMITS, ".messages[0]")


@pytest.mark.parametrize("data", [b"", b"x", b"GIF89a", b"<svg/>", picture(9, 9)[:40], bomb(20, 20)])
def test_broken_files_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match=r"^\.messages\[0\]: "):
        prepare_image(data, LIMITS, ".messages[0]")


def test_files_broken_anywhere_are_refused_or_read() -> None:
    rng, whole = random.Random(3), [picture(60, 40, kind) for kind in ("PNG", "JPEG", "WEBP", "GIF")]
    for _ in range(200):
        broken = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        with contextlib.suppress(ImageError):
            prepare_image(bytes(broken[: rng.randrange(len(broken) + 1)]), LIMITS)


async def test_sources_are_loaded_within_limits() -> None:
    data = picture(5, 5)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    sources = [DataUrlImage(url, "high", "a"), BytesImage(data, "high", "b")]
    assert await load_images(sources, LIMITS) == [data, data]
    for limits, problem in (
        (ImageOptions(max_images=1), "more than 1 images"),
        (ImageOptions(max_bytes=10), "larger than 10 bytes"),
        (ImageOptions(max_total_bytes=len(data) + 1), "images are larger"),
    ):
        with pytest.raises(ImageError, match=problem):
            await load_images(sources, limits)


async def test_addresses_are_fetched_only_by_what_was_passed_in() -> None:
    sources = [UrlImage("https://x.test/a.png", "high", ".messages[1]")]
    with pytest.raises(ImageError, match=r"^\.messages\[1\]: external"):
        await load_images(sources, LIMITS)

    async def fetch(url: str, max_bytes: int) -> bytes:
        check_public_address("8.8.8.8" if url.endswith("png") else "10.0.0.1")
        return b"x" * (max_bytes if url.endswith("large.png") else 1)

    assert await load_images(sources, LIMITS, fetch) == [b"x"]
    with pytest.raises(ImageError, match="not a public address"):
        await load_images([UrlImage("http://inside/", "high", "")], LIMITS, fetch)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("::1", "fe80::1", "fc00::1", "::ffff:10.0.0.1", "::", "::ffff:127.0.0.1", "ff02::1", "224.0.0.1"),
    ],
)
def test_private_addresses_are_no_place_to_fetch_from(address: str) -> None:
    with pytest.raises(ValueError, match="not a public address"):
        check_public_address(address)


def test_public_addresses_are() -> None:
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"):
        check_public_address(address)
