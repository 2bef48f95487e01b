"""Reports received over HTTP and stored durably by a gateway on one core.

The reference of single reports is an application that only reads the body and responds; that of batches is decoding and
writing the same bytes. The load generator and PostgreSQL use another core if there is one.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.speed.harness import bodies, serving, wrk
from benchmarks.speed.harness.measurement import Measurement, Setting, alternate, compare
from benchmarks.speed.harness.serving import LOAD_CORE, Served, document
from benchmarks.speed.harness.wrk import Load, LoadResult

DATABASES = ("SQLite", "PostgreSQL")
SINGLE_RATIO = 1.5  # bar: CPU time of a report, as a multiple of that of a bare application in the same turn
COPY_SHARE = 0.8  # bar: share of the rate of COPY of the same bytes
SLOW_DISK_PER_SECOND, ARROW_PER_SECOND = 5_000.0, 12e6
CONNECTIONS, MANY_CONNECTIONS, BATCH_CONNECTIONS = 64, 256, 4
SECONDS, QUICK_SECONDS, WARM_SECONDS = 3.0, 1.0, 1.0
MAX_SECONDS = 64.0  # longest run on a busy machine, if shorter ones got no response
BATCH = 100_000
GRID = {"encoding": {"type": "grid", "cells": [15, 17]}, "mechanism": "grr", "epsilon": 1}
FEATURES = [{"name": name, "lower": 0.0, "upper": 1.0, "unit": ""} for name in ("x", "y")]


class Lost(Exception):
    """The service counted fewer reports than it acknowledged, or more than were sent."""


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield the rows of each database, then of two gateways."""
    wrk.command()
    seconds = QUICK_SECONDS if setting.quick else SECONDS
    for database in DATABASES:
        setting.progress(f"single reports, {database}")
        for connections in (CONNECTIONS,) if setting.quick else (CONNECTIONS, MANY_CONNECTIONS):
            yield from singles(database, setting.turns, seconds, connections)
        if not setting.quick:
            yield on_slow_disk(database, setting.turns, seconds)
        setting.progress(f"batches, {database}")
        yield from batches(database, setting.turns, seconds)
    if setting.quick:
        return
    setting.progress("two gateways")
    yield two_gateways(setting.turns, seconds)


def singles(database: str, turns: int, seconds: float, connections: int) -> Iterator[Measurement]:
    """Compare the rate of single reports with the baseline application, and their CPU time with the target."""
    with serving.serving(database) as served, serving.baseline_app() as baseline:
        target = Target(served, connections=connections)
        ours: list[float] = []  # CPU seconds per report
        bare: list[float] = []

        def theirs() -> float:
            began = serving.cpu_seconds(baseline)
            result = wrk.run(target.load, baseline.url, seconds, core=LOAD_CORE)
            bare.append((serving.cpu_seconds(baseline) - began) / max(1, result.requests))
            return result.per_second

        measured, times = target.alternate(theirs, turns, seconds, ours)
        note = f"{connections} connections, a report each; {times}; {_memory(served)}."
    name = f"single reports, {database}, {connections} connections"
    yield _row(name, "bare ASGI application", measured, note)
    note = f"The bare application takes {1e6 * median(bare):.1f} µs, {median(bare) / median(ours):.2f} of it."
    allowed = [SINGLE_RATIO * each for each in bare]
    reference = f"{SINGLE_RATIO:g} times the bare application"
    yield compare(f"{name}, CPU time", reference, (ours, allowed), bar=1.0, note=note)


def on_slow_disk(database: str, turns: int, seconds: float) -> Measurement:
    """Compare single reports with a target, with a disk with flushes that take 5 ms longer."""
    with serving.serving(database, slow_disk=True) as served:
        target = Target(served, connections=MANY_CONNECTIONS)
        measured, times = target.alternate(lambda: SLOW_DISK_PER_SECOND, turns, seconds)
    name, reference = f"single reports, {database}, flushes 5 ms slower", f"{SLOW_DISK_PER_SECOND:,.0f} a second"
    return _row(name, reference, measured, f"{MANY_CONNECTIONS} connections; {times}.", 1.0)


def _row(
    name: str, reference: str, measured: tuple[list[float], list[float]], note: str, bar: float | None = None
) -> Measurement:
    return compare(name, reference, measured, unit="reports/s", more_is_better=True, bar=bar, note=note)


def batches(database: str, turns: int, seconds: float) -> Iterator[Measurement]:
    """Compare requests of 100,000 reports, in each form, with decoding and writing the same bytes."""
    with serving.serving(database) as served, tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        target = Target(served)
        these = bodies.make_reports(target.spec, BATCH)
        for form, media_type in bodies.FORMS.items():
            sent, file = bodies.body(form, these), Path(folder) / "body"
            file.write_bytes(sent)
            load = Load(served.key, media_type, BATCH_CONNECTIONS, file)
            target.set_load(load, BATCH)
            target.run(WARM_SECONDS)

            computed: list[float] = []  # reports per CPU second of the gateway

            def ours(target: Target = target, computed: list[float] = computed) -> float:
                began = serving.cpu_seconds(served.gateways[0])
                results = target.run(seconds)
                computed.append(results.requests * BATCH / (serving.cpu_seconds(served.gateways[0]) - began))
                return results.per_second * BATCH

            with _writer(served) as write:

                def theirs(form: str = form, sent: bytes = sent, write: Any = write) -> float:
                    with serving.pinned(serving.SERVER_CORE):
                        return bodies.per_second(form, sent, BATCH, write, seconds)

                measured = alternate(ours, theirs, turns)
            target.check()
            written = "file and flush" if served.database_url is None else "COPY and commit"
            note = f"{BATCH_CONNECTIONS} connections; one body is {len(sent) / 1e6:.1f} MB; {_memory(served)}."
            name = f"batches of {BATCH:,}, {form}, {database}"
            is_arrow = form == "Arrow IPC"
            bar = COPY_SHARE if is_arrow and served.database_url is not None else None
            yield _row(name, f"decode, {written}", measured, note, bar)
            if is_arrow:
                against = (computed, [ARROW_PER_SECOND] * turns)
                reference = f"{ARROW_PER_SECOND / 1e6:.0f} M a second and core"
                note = "CPU time of the gateway; the row above includes the disk."
                yield _row(f"{name}, a second of computing", reference, against, note, 1.0)


def two_gateways(turns: int, seconds: float) -> Measurement:
    """Compare two gateways over one PostgreSQL with one of them, without pinned cores."""
    with serving.serving("PostgreSQL", n_gateways=2, core=None) as served:
        target = Target(served, core=None)

        def at(n_gateways: int) -> float:
            return sum(results.per_second for results in target.at_all(n_gateways, seconds))

        target.at_all(2, WARM_SECONDS)
        measured = alternate(lambda: at(2), lambda: at(1), turns)
        target.check()
    note = "Gateways, PostgreSQL and load generators share the cores."
    return _row("single reports, PostgreSQL, two gateways", "one gateway", measured, note)


class Target:
    """An open round of a service; counts the reports sent to it."""

    def __init__(self, served: Served, *, connections: int = CONNECTIONS, core: int | None = LOAD_CORE) -> None:
        self._served, self._core = served, core
        with served.client() as client:
            _, opened = open_round(client, GRID | {"target_reports": 10**9}, "/v1")
        self.spec: dict[str, Any] = opened["spec"]
        self._path = f"/v1/rounds/{opened['id']}"
        self.load, self._each = Load(served.key, connections=connections), 1
        self._acknowledged = self._unknown = 0

    def set_load(self, load: Load, each: int) -> None:
        """Set the load and its number of reports per request."""
        self.load, self._each = load, each

    def run(self, seconds: float) -> LoadResult:
        """Send to the first gateway."""
        (results,) = self.at_all(1, seconds)
        return results

    def at_all(self, n_gateways: int, seconds: float) -> list[LoadResult]:
        """Send to several gateways at once."""
        urls = [f"{gateway.url}{self._path}/reports" for gateway in self._served.gateways[:n_gateways]]
        while True:
            processes = [wrk.begin(self.load, url, seconds, core=self._core) for url in urls]
            results = [wrk.end(process) for process in processes]
            self._acknowledged += sum(each.requests for each in results) * self._each
            # Requests are in flight when the load generator ends.
            self._unknown += len(urls) * self.load.connections * self._each
            if all(each.requests for each in results):
                return results
            seconds *= 2
            if seconds > MAX_SECONDS:
                raise Lost(f"no request was answered within {seconds / 2:g} s")

    def alternate(
        self, theirs: Callable[[], float], turns: int, seconds: float, computed: list[float] | None = None
    ) -> tuple[tuple[list[float], list[float]], str]:
        """Measure the rate of responses alternately with a reference; return both, and the times of responses.

        Append the CPU seconds of the first gateway per request of each turn to `computed`.
        """
        self.run(WARM_SECONDS)
        results: list[LoadResult] = []

        def ours() -> float:
            began = serving.cpu_seconds(self._served.gateways[0])
            results.append(self.run(seconds))
            if computed is not None:
                computed.append((serving.cpu_seconds(self._served.gateways[0]) - began) / results[-1].requests)
            return results[-1].per_second

        measured = alternate(ours, theirs, turns)
        self.check()
        p50, p99 = (
            1000 * median(times) for times in zip(*((r.p50_seconds, r.p99_seconds) for r in results), strict=True)
        )
        return measured, f"responses in {p50:.1f} ms (p50), {p99:.1f} ms (p99)"

    def check(self) -> None:
        """Raise Lost unless every acknowledged report is counted, and none that was not sent."""
        with self._served.client() as client:
            n_received = document(client.get(self._path))["n_received"]
        if not self._acknowledged <= n_received <= self._acknowledged + self._unknown:
            raise Lost(f"{self._acknowledged} reports were acknowledged, {n_received} are counted")


def open_round(client: httpx.Client, body: dict[str, Any], prefix: str = "") -> tuple[str, dict[str, Any]]:
    """Create a dataset and open a round; return the id of the dataset and the round."""
    given = {"name": "speed", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
    dataset_id: str = document(client.post(f"{prefix}/datasets", json=given))["id"]
    return dataset_id, document(client.post(f"{prefix}/datasets/{dataset_id}/rounds", json=body))


def _writer(served: Served) -> Any:
    return bodies.file_writer() if served.database_url is None else bodies.copy_writer(served.database_url)


def _memory(served: Served) -> str:
    peaks = (serving.peak_memory_mb(gateway.process.pid) for gateway in served.gateways)
    return f"the gateway has {max(peaks):.0f} MB at most"
