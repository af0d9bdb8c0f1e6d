"""The connection over which a replica sends its tokens: a message for each step, not for each token of each stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import msgspec

Address = tuple[str, int]
Piece = tuple[int, int, str, str | None]  # the number of a request, and a delta of it

DECODER = msgspec.json.Decoder(list[Piece])


class Outbox:
    """The replica's end: what is put in is sent together, as soon as the event loop is done with what it does now."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer, self.pieces = writer, list[Piece]()

    def put(self, pieces: Iterable[Piece]) -> None:
        if not self.pieces:
            asyncio.get_running_loop().call_soon(self._send)
        self.pieces += pieces

    def _send(self) -> None:
        self.writer.write(msgspec.json.encode(self.pieces) + b"\n")
        self.pieces = []


async def listen(host: str, take: Callable[[Piece], None]) -> asyncio.Server:
    """The ingress's end, on a free port. take: called with each piece from any replica."""
    return await asyncio.start_server(partial(_read, take), host, 0, limit=2**26)  # bytes of a message


async def _read(take: Callable[[Piece], None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.CancelledError):
        async for line in reader:
            for piece in DECODER.decode(line):
                take(piece)
    writer.close()
