"""Aggregation of a report log into its tally, against the time to read the same bytes from the page cache."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median

import numpy as np

from benchmarks.peers.peer import Peer
from benchmarks.speed.harness.measurement import Disagreement, Measurement, Setting, alternate, compare, seconds
from benchmarks.speed.harness.report_log import ReportLog, closing_database, report_log, spec_of
from benchmarks.speed.harness.serving import peak_memory_mb, pinned
from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Tally
from models.collection.report_log import ID_BYTES
from models.tables.rounds import Round
from runtime.process import WORKER_KEPT_BYTES, keep_freed_memory
from sfumato.specs import RoundSpec
from workers.aggregation.aggregate import aggregate_round

N_REPORTS, QUICK_REPORTS = 2_000_000, 200_000
N_SYMBOLS = 169
KINDS = {
    "ss": "ss, 169 symbols",
    "grr": "grr, 169 symbols",
    "oue": "oue, 169 symbols",
    "hr": "hr, 169 symbols",
    "olh": "olh, 169 symbols",
    "discrete_laplace": "vectors of 2 features",
}
DATABASE_SHARE = 3.0  # bar: times the speed of a database
SHARES = {"discrete_laplace": 0.25, "grr": 0.5, "hr": 0.5, "oue": 0.5, "ss": 0.5}  # bars: shares of the reading speed
RATES = {"grr": 150e6, "hr": 150e6, "olh": 40e6, "ss": 70e6}  # bars: reports per second on two cores
DATABASES = {"duckdb": "DuckDB", "chdb": "chDB"}
WHOLE_REPORTS, WHOLE_SECONDS = 10_000_000, 5.0  # from the log to the estimate on one core
SMALL_REPORTS = 100_000
FINGERPRINT_BYTES = 8
MEMORY_SHARE = 0.8  # bar: share of fingerprints in the growth of memory
REPEATED = 0.01  # share of reports that are sent twice in one row

HASHES = "local hashing computes one hash for each of 169 symbols and each report"
SORTS = "the sample is sorted, so that its order reveals nothing"
NOTES = {"olh": HASHES, "discrete_laplace": SORTS}
READING = "the same rows read from SQLite"


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield a row per mechanism, then the plain file, repeated reports, the whole path, and memory."""
    keep_freed_memory(WORKER_KEPT_BYTES)  # the setting of a worker
    n_reports = QUICK_REPORTS if setting.quick else N_REPORTS
    for kind in KINDS:
        setting.progress(f"  fold: {kind}")
        with report_log(spec_of(kind, N_SYMBOLS), n_reports) as log:
            aggregate_round(log.database, log.closed)  # compile kernels
            yield from _against(setting, log, kind, log.read, READING, SHARES.get(kind), rate=RATES.get(kind))
            if kind == "ss":
                reference = "the database's file read as it is"
                yield from _against(setting, log, kind, log.read_file, reference, None, ", against the file")
    for package in DATABASES:
        setting.progress(f"  fold: grr, {DATABASES[package]}")
        yield _database(setting, n_reports, package)
    setting.progress("  fold: with repeats")
    with report_log(spec_of("ss", N_SYMBOLS), n_reports, repeated=REPEATED) as log:
        yield from _against(setting, log, "ss", log.read, READING, None, f", {REPEATED:.0%} repeats")
    setting.progress("  fold: from end to end")
    yield _whole(setting)
    setting.progress("  fold: memory")
    yield _memory(setting)


def _database(setting: Setting, n_reports: int, package: str) -> Measurement:
    """Compare with a database that has the same ids and symbols in memory, and counts each id once."""
    with report_log(spec_of("grr", N_SYMBOLS), n_reports) as log, Peer(threads=2) as peer:
        records = np.frombuffer(b"".join(log.rows()), dtype=np.uint8).reshape(n_reports, -1)
        peer.send("ids", np.ascontiguousarray(records[:, :ID_BYTES]).view("<u8"))
        peer.send("symbols", records[:, -1])
        peer.call("store_reports", "ids", "symbols", threads=2, library=package)
        count_there = partial(peer.call, "count_reports", distinct=True, library=package)
        tally = aggregate_round(log.database, log.closed).tally
        assert isinstance(tally, Tally)  # a round of symbols
        if count_there().value.tolist() != tally.counts.sum(axis=0).tolist():
            raise Disagreement(f"{DATABASES[package]} counts other numbers of reports")
        measured = alternate(
            lambda: seconds(lambda: aggregate_round(log.database, log.closed)),
            lambda: count_there().seconds,
            setting.turns,
        )
        library = f"{DATABASES[package]} {peer.version(package)}"
    reference, name = f"{library}, group by symbol of distinct ids, in memory", f"log to tally: {KINDS['grr']}"
    note = f"{n_reports:,} reports, two threads each"
    return compare(f"{name}, each id once", reference, measured, bar=DATABASE_SHARE, note=note)


def _against(
    setting: Setting,
    log: ReportLog,
    kind: str,
    read: Callable[[], int],
    reference: str,
    bar: float | None,
    addition: str = "",
    rate: float | None = None,
) -> Iterator[Measurement]:
    """Compare with reading, and the same turns with a rate."""
    n_reports = log.closed.n_received

    def rate_of(work: Callable[[], object], nanoseconds: list[float]) -> float:
        def timed() -> None:
            before = time.process_time()
            work()
            nanoseconds.append((time.process_time() - before) / n_reports * 1e9)

        return n_reports / seconds(timed)

    cpu: tuple[list[float], list[float]] = ([], [])  # nanoseconds per report: ours, reading
    measured = alternate(
        lambda: rate_of(lambda: aggregate_round(log.database, log.closed), cpu[0]),
        lambda: rate_of(read, cpu[1]),
        setting.turns,
    )
    name = f"log to tally: {KINDS[kind]}{addition}"
    note = f"{median(cpu[0]):.0f} ns of CPU time a report, {median(cpu[1]):.0f} of them reading"
    note += f"; {NOTES.get(kind, f'{n_reports:,} reports')}"
    reference += ", page cache"
    yield compare(name, reference, measured, unit="reports/s", more_is_better=True, bar=bar, note=note)
    if rate is not None:
        against, reference = (measured[0], [rate] * setting.turns), f"{rate / 1e6:.0f} M a second"
        yield compare(f"{name}, a second", reference, against, unit="reports/s", more_is_better=True, bar=1.0)


def _whole(setting: Setting) -> Measurement:
    n_reports = WHOLE_REPORTS // 10 if setting.quick else WHOLE_REPORTS
    limit = WHOLE_SECONDS * n_reports / WHOLE_REPORTS
    with report_log(spec_of("ss", N_SYMBOLS), n_reports) as log, pinned(min(os.sched_getaffinity(0))):

        def estimated() -> None:
            folded = aggregate_round(log.database, log.closed)
            if folded.tally.n_reports != n_reports or folded.n_repeated or folded.n_malformed:
                raise Disagreement("the aggregation lost reports")
            assert isinstance(folded.tally, Tally)  # a round of symbols
            decoder(log.closed.spec.mechanism).frequencies(folded.tally)

        measured = alternate(lambda: seconds(estimated), lambda: limit, min(3, setting.turns))
    note = "reading, checking, removing repeats, counting, estimating; on one core"
    return compare(f"log to estimate: {n_reports:,} ss, 169 symbols", "the target", measured, bar=1.0, note=note)


def _memory(setting: Setting) -> Measurement:
    n_large = WHOLE_REPORTS // 10 if setting.quick else WHOLE_REPORTS
    spec = spec_of("ss", N_SYMBOLS)
    peaks = [_peak_of_fold(spec, n_reports) for n_reports in (SMALL_REPORTS, n_large)]
    ids = FINGERPRINT_BYTES * (n_large - SMALL_REPORTS) / 1e6
    grown = max(peaks[1] - peaks[0], 0.01)
    name = f"peak memory, {SMALL_REPORTS:,} to {n_large:,} reports"
    note = f"growth from {peaks[0]:.0f} MB; above 16.8 million ids, fingerprints go to a file"
    alone = "fingerprints of the ids alone"
    return compare(name, alone, ([grown], [ids]), unit="MB", bar=MEMORY_SHARE, note=note)


def _peak_of_fold(spec: RoundSpec, n_reports: int) -> float:
    """Return the peak memory of an aggregation in a process of its own, in megabytes."""
    spawn = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with report_log(spec, n_reports) as log, spawn as pool:
        return pool.submit(_fold_here, str(log.database.engine.url), log.closed.id).result()


def _fold_here(url: str, round_id: str) -> float:
    """Aggregate a round, and return the peak memory of this process in megabytes."""
    with closing_database(url) as database:
        with database.reading() as session:
            closed = session.get_one(Round, round_id)
        aggregate_round(database, closed)
    return peak_memory_mb() * (1 << 20) / 1e6
