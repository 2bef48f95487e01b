"""Reports taken in and stored, over HTTP, with commits that reach the disk; the gateway on one core.

Single reports are held to an application that only reads the body and answers, batches to decoding the same bytes and
writing them. The load generator, and PostgreSQL with it, have another core where there is one.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.speed import bodies, serving, wrk
from benchmarks.speed.row import Row, Setting, compare, in_turns
from benchmarks.speed.serving import LOAD_CORE, Served
from benchmarks.speed.wrk import Load, Told

GROUP = "ingest"
DATABASES = ("SQLite", "PostgreSQL")
SINGLE_BAR, SLOW_DISK_PER_SECOND, ARROW_PER_SECOND = 0.75, 5_000.0, 20e6
CONNECTIONS, MANY_CONNECTIONS, BATCH_CONNECTIONS = 64, 256, 4
SECONDS, QUICK_SECONDS, WARM_SECONDS = 3.0, 1.0, 1.0
MAX_SECONDS = 64.0  # for a machine so busy that no request was answered before
BATCH = 100_000
GRID = {"encoding": {"type": "grid", "cells": [16, 16]}, "mechanism": "grr", "epsilon": 1}
FEATURES = [{"name": name, "lower": 0.0, "upper": 1.0, "unit": ""} for name in ("x", "y")]
UNIT = "reports/s"


class Lost(Exception):
    """The service counts fewer reports than it acknowledged, or more than were sent."""


def rows(setting: Setting) -> Iterator[Row]:
    """Each database's, then two gateways'."""
    wrk.command()
    seconds = QUICK_SECONDS if setting.quick else SECONDS
    for database in DATABASES:
        setting.progress(f"single reports, {database}")
        for connections in (CONNECTIONS, MANY_CONNECTIONS):
            yield singles(database, setting.turns, seconds, connections)
        yield on_slow_disk(database, setting.turns, seconds)
        setting.progress(f"batches, {database}")
        yield from batches(database, setting.turns, seconds)
    setting.progress("two gateways")
    yield two_gateways(setting.turns, seconds)


def singles(database: str, turns: int, seconds: float, connections: int) -> Row:
    """Single reports against the bare application; the bar is that of the fewer connections."""
    with serving.serving(database) as served, serving.bare() as bare:
        target = Target(served, connections=connections)
        told: list[Told] = []

        def ours() -> float:
            told.append(target.run(seconds))
            return told[-1].per_second

        def theirs() -> float:
            return wrk.run(target.load, bare.url, seconds, core=LOAD_CORE).per_second

        target.run(WARM_SECONDS)
        measured = in_turns(ours, theirs, turns)
        target.check()
        note = f"{connections} connections, a report each; answered {_times(told)}; {_memory(served)}."
    is_plain = connections == CONNECTIONS
    name = f"single reports, {database}" if is_plain else f"single reports, {database}, {connections} connections"
    bar = SINGLE_BAR if is_plain else None
    return compare(GROUP, name, "bare ASGI application", measured, unit=UNIT, more_is_better=True, bar=bar, note=note)


def on_slow_disk(database: str, turns: int, seconds: float) -> Row:
    """Single reports where each flush takes 5 ms longer."""
    with serving.serving(database, slow_disk=True) as served:
        target = Target(served, connections=MANY_CONNECTIONS)
        told: list[Told] = []

        def ours() -> float:
            told.append(target.run(seconds))
            return told[-1].per_second

        target.run(WARM_SECONDS)
        measured = in_turns(ours, lambda: SLOW_DISK_PER_SECOND, turns)
        target.check()
        note = f"{MANY_CONNECTIONS} connections; answered {_times(told)}."
    name, reference = f"single reports, {database}, flushes 5 ms slower", f"{SLOW_DISK_PER_SECOND:,.0f} a second"
    return compare(GROUP, name, reference, measured, unit=UNIT, more_is_better=True, bar=1.0, note=note)


def batches(database: str, turns: int, seconds: float) -> Iterator[Row]:
    """Requests of 100,000 reports, in each form, against decoding and writing the same bytes."""
    with serving.serving(database) as served, tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        target = Target(served)
        these = bodies.reports(BATCH, *bodies.columns_of(target.spec))
        for form, media_type in bodies.FORMS.items():
            sent, file = bodies.body(form, these), Path(folder) / "body"
            file.write_bytes(sent)
            load = Load(served.key, media_type, BATCH_CONNECTIONS, file)
            target.use(load, BATCH)
            target.run(WARM_SECONDS)

            computed: list[float] = []  # reports a second of the gateway's own computing

            def ours(target: Target = target, computed: list[float] = computed) -> float:
                began = served.gateways[0].cpu_seconds()
                told = target.run(seconds)
                computed.append(told.requests * BATCH / (served.gateways[0].cpu_seconds() - began))
                return told.per_second * BATCH

            with _writer(served) as write:

                def theirs(form: str = form, sent: bytes = sent, write: Any = write) -> float:
                    with serving.pinned(serving.SERVER_CORE):
                        return bodies.per_second(form, sent, BATCH, write, seconds)

                measured = in_turns(ours, theirs, turns)
            target.check()
            written = "file and flush" if served.database_url is None else "COPY and commit"
            note = f"{BATCH_CONNECTIONS} connections; one body is {len(sent) / 1e6:.1f} MB; {_memory(served)}."
            name = f"batches of {BATCH:,}, {form}, {database}"
            yield compare(GROUP, name, f"decode, {written}", measured, unit=UNIT, more_is_better=True, note=note)
            if form == "Arrow IPC":
                against = (computed, [ARROW_PER_SECOND] * turns)
                reference = f"{ARROW_PER_SECOND / 1e6:.0f} M a second and core"
                name, note = f"{name}, a second of computing", "By the gateway's processor time; the disk's is above."
                yield compare(GROUP, name, reference, against, unit=UNIT, more_is_better=True, bar=1.0, note=note)


def two_gateways(turns: int, seconds: float) -> Row:
    """Two gateways over one PostgreSQL against one of them, nobody bound to a core."""
    with serving.serving("PostgreSQL", n_gateways=2, core=None) as served:
        target = Target(served, core=None)

        def at(n_gateways: int) -> float:
            return sum(told.per_second for told in target.at_all(n_gateways, seconds))

        target.at_all(2, WARM_SECONDS)
        measured = in_turns(lambda: at(2), lambda: at(1), turns)
        target.check()
    note = "All of it on the same cores: gateways, PostgreSQL, load generators."
    name = "single reports, PostgreSQL, two gateways"
    return compare(GROUP, name, "one gateway", measured, unit=UNIT, more_is_better=True, note=note)


class Target:
    """An open round of a service, and what is sent to it; keeps count."""

    def __init__(self, served: Served, *, connections: int = CONNECTIONS, core: int | None = LOAD_CORE) -> None:
        self._served, self._core = served, core
        with served.client() as client:
            given = {"name": "speed", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
            dataset = _made(client.post("/v1/datasets", json=given))
            opened = _made(client.post(f"/v1/datasets/{dataset['id']}/rounds", json=GRID | {"target_reports": 10**9}))
        self.spec: dict[str, Any] = opened["spec"]
        self._path = f"/v1/rounds/{opened['id']}"
        self.load, self._each = Load(served.key, connections=connections), 1
        self._acknowledged = self._unknown = 0

    def use(self, load: Load, each: int) -> None:
        """Send this from now on, so many reports a request."""
        self.load, self._each = load, each

    def run(self, seconds: float) -> Told:
        """Send to the first gateway."""
        (told,) = self.at_all(1, seconds)
        return told

    def at_all(self, n_gateways: int, seconds: float) -> list[Told]:
        """Send to so many gateways at once."""
        urls = [f"{gateway.url}{self._path}/reports" for gateway in self._served.gateways[:n_gateways]]
        while True:
            begun = [wrk.begin(self.load, url, seconds, core=self._core) for url in urls]
            told = [wrk.end(process) for process in begun]
            self._acknowledged += sum(each.requests for each in told) * self._each
            self._unknown += len(urls) * self.load.connections * self._each  # under way as the load generator ended
            if all(each.requests for each in told):
                return told
            seconds *= 2
            if seconds > MAX_SECONDS:
                raise Lost(f"no request was answered within {seconds / 2:g} s")

    def check(self) -> None:
        """Raise Lost unless what was acknowledged is stored, and nothing that was not sent."""
        with self._served.client() as client:
            n_received = _made(client.get(self._path))["n_received"]
        if not self._acknowledged <= n_received <= self._acknowledged + self._unknown:
            raise Lost(f"{self._acknowledged} reports were acknowledged, {n_received} are counted")


def _writer(served: Served) -> Any:
    return bodies.file_writer() if served.database_url is None else bodies.copy_writer(served.database_url)


def _made(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def _times(told: list[Told]) -> str:
    middle, slowest = (
        sorted(getattr(each, name) for each in told)[len(told) // 2] for name in ("p50_seconds", "p99_seconds")
    )
    return f"in {1000 * middle:.1f} ms (p50), {1000 * slowest:.1f} ms (p99)"


def _memory(served: Served) -> str:
    return f"the gateway holds {max(gateway.memory_mb('VmHWM') for gateway in served.gateways):.0f} MB at most"
