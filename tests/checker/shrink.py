"""Makes a failing script small: as few clients and events as possible, everything else as plain as possible.

Greedy: one change after another is kept if the smaller script still fails in the same way, until none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .script import Client, DeviceScript, Event, Knobs, Model, Script

Fails = Callable[[Script], bool]


def shrink(script: Script, fails: Fails, tries: int = 2000) -> Script:
    """The smallest script found with `tries` runs for which `fails` holds; `fails(script)` must hold."""
    smaller: Script | None = script
    while smaller is not None:
        script = smaller
        smaller = None
        for candidate in _smaller(script):
            tries -= 1
            if tries < 0:
                return script
            if fails(candidate):
                smaller = candidate
                break
    return script


def _smaller(script: Script) -> Iterator[Script]:
    """Simpler scripts, the boldest first."""
    yield from _with_fewer(script, "clients")
    yield from _with_fewer(script, "events")
    if script.close_at is not None:
        yield _set(script, close_at=None)
    for name, plain in (("device", DeviceScript()), ("knobs", Knobs()), ("model", Model())):
        for part in _plainer(getattr(script, name), plain):
            yield _set(script, **{name: part})
    for index, client in enumerate(script.clients):
        for simpler in _simpler_clients(client):
            yield _set(script, clients=_put(script.clients, index, simpler))
    for index, event in enumerate(script.events):
        for simpler_event in _plainer(event, Event(at=0.0, kind=event.kind)):
            yield _set(script, events=_put(script.events, index, simpler_event))


def _with_fewer(script: Script, field: str) -> Iterator[Script]:
    items = getattr(script, field)
    size = len(items)
    part = size
    while part >= 1:
        for start in range(0, size, part):
            kept = items[:start] + items[start + part :]
            if len(kept) < size:
                yield _set(script, **{field: kept})
        part //= 2


def _plainer(part: Any, plain: Any) -> Iterator[Any]:
    """With one field at its plain value."""
    for name in part.__struct_fields__:
        if getattr(part, name) != getattr(plain, name):
            yield _set(part, **{name: getattr(plain, name)})


def _simpler_clients(client: Client) -> Iterator[Client]:
    yield from _plainer(client, Client(prompt=client.prompt, max_tokens=client.max_tokens))
    length = len(client.prompt)
    for shorter in dict.fromkeys((1, length // 2, length - 1)):
        if 0 < shorter < length:
            yield _set(client, prompt=client.prompt[:shorter])
    if len(set(client.prompt)) > 1:
        yield _set(client, prompt=(client.prompt[0],) * length)
    limit = client.max_tokens
    if limit is None:
        yield _set(client, max_tokens=16)
    else:
        for smaller in dict.fromkeys((1, limit // 2, limit - 1)):
            if client.min_tokens <= smaller < limit:
                yield _set(client, max_tokens=smaller)


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _set(part: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(part, **changes)
