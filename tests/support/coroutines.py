"""What the tests of coroutines share. Every wait has a limit."""

import asyncio

from tests.support.managers import LIMIT


def run(coroutine):
    """Run it to its end, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT))


async def read(stream):
    return [token.token_id async for token in stream]


async def until(condition):
    """Wait for what another thread does."""
    while not condition():
        await asyncio.sleep(0.001)
