"""A process that answers every request of HTTP/1.1 at once: ``python -m … status body``.

Prints its URL. For measurements, and for tests that need ten thousand answers: it shares no
interpreter with the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator


class _Connection(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, rest = self._received.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = sum(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            if len(rest) < length:
                return
            self._received = rest[length:]
            self._transport.write(self._answer)


async def serve(status: str, body: str) -> None:
    """Answer until the process is ended."""
    answer = (
        f"HTTP/1.1 {status} Fine\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer), "127.0.0.1", 0, backlog=512)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def quick_server(status: int = 201, body: str = '{"id": "ch_1"}') -> Iterator[str]:
    """The URL of such a process."""
    command = [sys.executable, "-m", __name__, str(status), body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(*sys.argv[1:]))
