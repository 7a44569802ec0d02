"""Images in requests: which are accepted, and where their placeholders stand in a message."""

from __future__ import annotations

import base64
import binascii
import re

from ..conversation import DataUrlImage, ImageDetail, ImageSource, UrlImage
from ..special_tokens import SpecialTokens

_DATA_URL = re.compile(r"data:([^,]*),", re.IGNORECASE)
_EXTERNAL = re.compile(r"https?:", re.IGNORECASE)
SUPPORTED_TYPES = frozenset({"image/webp", "image/png", "image/jpeg", "image/jpg", "image/gif"})


class ImagePartError(ValueError):
    """Why an image is refused. `problem` is one of the names below; the protocols word them."""

    FORMAT, BASE64, TYPE = "format", "base64", "type"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def image_source(url: str, detail: ImageDetail, path: str) -> ImageSource:
    """An external URL or a base64 data URL. Raises `ImagePartError`."""
    if _EXTERNAL.match(url):
        return UrlImage(url, detail, path)
    match = _DATA_URL.match(url)
    if match is None or not match[1].endswith(";base64"):
        raise ImagePartError(ImagePartError.FORMAT)
    if match[1].partition(";")[0].strip().lower() not in SUPPORTED_TYPES:
        raise ImagePartError(ImagePartError.TYPE)
    check_base64(url[match.end() :])
    return DataUrlImage(url, detail, path)


def check_base64(data: str) -> None:
    """Standard alphabet; white space and missing padding are tolerated. Raises `ImagePartError`."""
    try:
        decode_base64(data)
    except (binascii.Error, ValueError) as error:
        raise ImagePartError(ImagePartError.BASE64) from error


def decode_base64(data: str) -> bytes:
    compacted = "".join(data.split())
    return base64.b64decode(compacted + "=" * (-len(compacted) % 4), validate=True)


class MessageContent:
    """Text parts and images of one message, joined by an empty line, with the places of the images."""

    def __init__(self, tokens: SpecialTokens, separator: str = "\n\n") -> None:
        self._token, self._separator = tokens.image, separator
        self._parts: list[str] = []
        self._length = 0
        self.images: list[ImageSource] = []
        self.placeholders: list[tuple[int, int]] = []

    def text(self, text: str) -> None:
        if self._parts:
            self._length += len(self._separator)
        self._parts.append(text)
        self._length += len(text)

    def image(self, source: ImageSource) -> None:
        self.text(self._token)
        self.placeholders.append((self._length - len(self._token), self._length))
        self.images.append(source)

    @property
    def content(self) -> str:
        return self._separator.join(self._parts)
