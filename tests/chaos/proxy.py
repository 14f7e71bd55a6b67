"""A proxy that breaks connections on command, cheap enough for all of the chaos run's traffic.

It forwards bytes and knows nothing of HTTP; ``tests/plugins/fault_proxy.py`` breaks single
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager


class Weather(enum.Enum):
    """What becomes of what passes."""

    FINE = "fine"
    #: The connection is reset before the server sees the request.
    RESET = "reset"
    #: The server sees the request, and its answer is lost with the connection.
    LOSE = "lose"
    #: The answer is held back until the weather changes, and then lost.
    STALL = "stall"


class Proxy:
    """Stands before a port of this machine. Runs in one event loop."""

    def __init__(self, upstream: int, rng: random.Random) -> None:
        self._upstream, self._rng = upstream, rng
        self._weather, self._share = Weather.FINE, 0.0
        self._changed = asyncio.Event()
        self._open: set[StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]

    def turn(self, weather: Weather, share: float = 1.0) -> None:
        """Change the weather, for that share of what passes."""
        self._weather, self._share = weather, share
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Reset every connection there is."""
        for writer in list(self._open):
            self._abort(writer)

    def _hits(self, *kinds: Weather) -> bool:
        return self._weather in kinds and self._rng.random() < self._share

    def _abort(self, *writers: StreamWriter) -> None:
        for writer in writers:
            writer.transport.abort()

    async def _serve(self, reader: StreamReader, client: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            from_server, server = await asyncio.open_connection("127.0.0.1", self._upstream)
            with self._kept(client), self._kept(server):
                await asyncio.gather(
                    self._requests(reader, server, client),
                    self._answers(from_server, client, server),
                )
        client.close()

    @contextmanager
    def _kept(self, writer: StreamWriter) -> Iterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.close()

    async def _requests(
        self,
        reader: StreamReader,
        server: StreamWriter,
        client: StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if self._hits(Weather.RESET):
                self._abort(client, server)
                return
            server.write(data)
        with contextlib.suppress(OSError):
            server.write_eof()

    async def _answers(
        self,
        reader: StreamReader,
        client: StreamWriter,
        server: StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if self._hits(Weather.STALL):
                await self._changed.wait()
                self._abort(client, server)
                return
            if self._hits(Weather.LOSE):
                self._abort(client, server)
                return
            client.write(data)
        client.close()


async def _read(reader: StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except OSError:  # broken: as good as over
        return b""
