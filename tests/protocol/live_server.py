"""The application behind a real server at a loopback address, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from stepahead.recipe.server.options import ServerOptions

from .application import serve


@contextlib.asynccontextmanager
async def live(engine: Any, **options: Any) -> AsyncIterator[str]:
    """The address, without a path. The server has stopped when the block ends."""
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(
        serve(engine, ServerOptions(**options), port=0, grace_seconds=1, on_ready=ready.set_result)
    )
    try:
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield await ready
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
