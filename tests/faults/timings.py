"""Timing tools for tests: the delay of a busy machine, and two hundred simultaneous requests."""

import asyncio
import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

_PAUSE_SECONDS = 0.01
_WORK = bytes(1 << 20)  # hashed after each pause; similar work to a database query
_CALM_STEPS = 20


class Noise:
    """A loop of pauses and a little work that measures the delay of a busy machine.

    `seconds` is the total delay inside the `with` block. It is close to 0 on an idle machine, and several times the
    waiting time on a machine with ten processes per core.
    """

    calm_seconds = 0.0  # shortest duration of one turn

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        if not Noise.calm_seconds:
            Noise.calm_seconds = min(_turn() for _ in range(_CALM_STEPS))

    def _run(self) -> None:
        while not self._ended.is_set():
            self.seconds += max(0.0, _turn() - Noise.calm_seconds)

    def __enter__(self) -> "Noise":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()


def _turn() -> float:
    began = time.perf_counter()
    time.sleep(_PAUSE_SECONDS)
    hashlib.sha256(_WORK)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Timing:
    """One measurement, and the delay of the machine during it."""

    seconds: float
    noise_seconds: float

    def is_within(self, figure_seconds: float) -> bool:
        """Whether the figure was met, but for what the machine did to it."""
        return self.seconds <= figure_seconds + 3 * self.noise_seconds


def describe(name: str, timings: Sequence[Timing]) -> str:
    """Return the measurement as one line."""
    each = sorted(timing.seconds for timing in timings)
    noise = statistics.median(timing.noise_seconds for timing in timings)
    return (
        f"{name}: n {len(each)}, min {each[0]:.3f}, median {statistics.median(each):.3f}, "
        f"max {each[-1]:.3f} s; the machine's own lateness {noise:.3f} s"
    )


# ---- requests that meet ----


@dataclass(frozen=True)
class Answered:
    """An answer, and when its request was sent whole and when it came."""

    status: int
    body: bytes
    sent_at: float
    answered_at: float


def meet(
    urls: Sequence[str], secret: str, path: str, body: bytes, n: int, *, released: Callable[[], None]
) -> list[Answered]:
    """Send one POST n times, over as many connections to these gateways in turn, all at one moment.

    All bytes but the last one of each request are sent. Then the last bytes are sent and `released` is called. This may
    unblock the requests.
    """
    return asyncio.run(_meet(urls, secret, path, body, n, released))


async def _meet(
    urls: Sequence[str], secret: str, path: str, body: bytes, n: int, released: Callable[[], None]
) -> list[Answered]:
    lines = [
        f"POST {path} HTTP/1.1", "Host: sfumato", f"Authorization: Bearer {secret}", "Connection: close",
        "Content-Type: application/json", f"Content-Length: {len(body)}", "", "",
    ]  # fmt: skip
    request = "\r\n".join(lines).encode() + body
    places = [urlsplit(urls[i % len(urls)]) for i in range(n)]
    wires = [await asyncio.open_connection(place.hostname, place.port) for place in places]
    for _, writer in wires:
        writer.write(request[:-1])
        await writer.drain()
    await asyncio.sleep(0.2)  # their heads are read by now; where they are not, they meet all the same
    sent_at = []
    for _, writer in wires:
        writer.write(request[-1:])
        sent_at.append(time.monotonic())

    async def hear(i: int) -> Answered:
        reader, writer = wires[i]
        heard = await reader.read()
        answered_at = time.monotonic()
        writer.close()
        head, _, answer = heard.partition(b"\r\n\r\n")
        return Answered(int(head.split()[1]), answer, sent_at[i], answered_at)

    hearing = [asyncio.ensure_future(hear(i)) for i in range(n)]
    await asyncio.sleep(0)
    await asyncio.to_thread(released)
    return list(await asyncio.gather(*hearing))
