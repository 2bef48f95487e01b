"""Transports that join their writes, because each write is a system call."""

import asyncio
from typing import Any

JOINED_BYTES = 64 << 10  # size from which a write is not delayed


class WriteQueue:
    """The transports that have bytes to write. They write once per iteration of the event loop."""

    def __init__(self) -> None:
        self._transports: list[JoinedTransport] = []

    def add(self, transport: "JoinedTransport") -> None:
        """Let a transport write at the next iteration."""
        if not self._transports:
            asyncio.get_running_loop().call_soon(self._flush)
        self._transports.append(transport)

    def _flush(self) -> None:
        transports, self._transports = self._transports, []
        for transport in transports:
            transport.flush()


class JoinedTransport(asyncio.Transport):
    """A transport that joins the writes of one iteration of the event loop, because each write is a system call."""

    def __init__(self, transport: asyncio.Transport, queue: WriteQueue) -> None:
        super().__init__()
        self._transport = transport
        self._queue = queue
        self._parts: list[bytes] = []
        self._n_passed = 0  # bytes of `n_written` that the transport has
        self.n_written = 0  # bytes in total
        self.is_closing = transport.is_closing  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data now and without a copy if it is large, otherwise with all data of this iteration."""
        if len(data) >= JOINED_BYTES:
            self.flush()
            self.n_written += len(data)
            self._n_passed = self.n_written
            if not self.is_closing():
                self._transport.write(data)
            return
        if not self._parts:
            self._queue.add(self)
        self._parts.append(bytes(data))
        self.n_written += len(data)
        if self.n_written - self._n_passed >= JOINED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the joined data."""
        parts, self._parts, self._n_passed = self._parts, [], self.n_written
        if parts and not self.is_closing():
            self._transport.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close the transport after the joined data."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the transport without unsent data."""
        self._parts = []
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the socket."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Leave arriving data to the kernel."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()
