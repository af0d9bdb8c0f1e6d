"""The server's process: a socket, uvicorn, and how it ends."""

from __future__ import annotations

import gc
import logging
import socket
import time
from types import FrameType

import uvicorn

from ..errors import ConfigError
from .answer import Engine
from .app import make_app
from .protocol import ApiError

STALL_SECONDS = 30  # after which a client that takes nothing more has gone
DEAD_SECONDS = 10.0  # in which a server without an engine says so, before it ends
DRAINS = ApiError(503, "the server is stopping: try another one", code="draining")


def listening_socket(host: str, port: int, stall_seconds: float = STALL_SECONDS, shared: bool = False) -> socket.socket:
    """A socket that listens; port 0 takes a free one. The kernel ends connections whose client stops reading.

    shared: with other processes, among which the kernel divides the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048, reuse_port=shared)
    except (OSError, ValueError) as error:  # ValueError: a name that no host can have
        raise ConfigError(f"nobody can listen on --host {host} --port {port}: {error}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * stall_seconds))
    return sock


class DrainingServer(uvicorn.Server):
    """On the first signal it refuses new requests and finishes the others, within a limit; on the second it ends."""

    def __init__(self, engine: Engine, api_key: str | None, drain_seconds: float) -> None:
        app = make_app(engine, api_key)
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_keep_alive=30, timeout_graceful_shutdown=2))
        gc.freeze()  # as in the engine process
        self.engine, self.drain_seconds = engine, drain_seconds
        self.until = float("inf")  # when it ends in any case

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called on SIGTERM and SIGINT."""
        if self.engine.refuses is not None:
            self.until = 0.0
        else:
            self.engine.refuses, self.until = DRAINS, time.monotonic() + self.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Whether it ends now; uvicorn asks ten times a second."""
        if self.engine.is_dead and self.until == float("inf"):
            logging.getLogger("uvicorn.error").error("the engine process has ended: so does the server, soon")
            self.until = time.monotonic() + DEAD_SECONDS
        drained = self.engine.refuses is DRAINS and not self.engine.choices
        if drained or time.monotonic() > self.until:
            self.engine.fail_all(DRAINS)
            return True
        return await super().on_tick(counter)
