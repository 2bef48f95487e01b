"""The fold: a report log becomes its tally, against the time to read the same bytes from the page cache."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.speed.agreement import Disagreement
from benchmarks.speed.report_log import ReportLog, report_log, spec_of
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.decoders import decoder
from clustering.plan import Tally
from sfumato.specs import RoundSpec
from workers.fold import Folded
from workers.process import keep_freed_memory
from workers.spread import fold_round

GROUP = "fold"
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
SHARE = 0.5  # of the speed of reading
WHOLE_REPORTS, WHOLE_SECONDS = 10_000_000, 5.0  # from the log to the estimate, on one core
SMALL_REPORTS = 100_000
ID_BYTES = 8  # of a fingerprint
MEMORY_SHARE = 0.8  # of what memory grows by, that is to be fingerprints
REPEATED = 0.01  # of the reports of one row, sent twice

HASHES = "one hash for each of 169 symbols and each report: what local hashing is"
SORTS = "a sample is kept in sorted order, so that it does not tell who was early"
NOTES = {"olh": HASHES, "discrete_laplace": SORTS}


def rows(setting: Setting) -> Iterator[Row]:
    """A row a mechanism, one against the plain file, one from end to end, one of memory."""
    keep_freed_memory()  # as a worker does
    n_reports = QUICK_REPORTS if setting.quick else N_REPORTS
    for kind in KINDS:
        setting.progress(f"  fold: {kind}")
        with report_log(spec_of(kind, N_SYMBOLS), n_reports) as log:
            fold_round(log.database, log.closed)  # compiled
            yield _against(setting, log, kind, log.read, "the same rows read from SQLite", SHARE)
            if kind == "ss":
                yield _against(setting, log, kind, log.read_file, "the database's file read as it is", None)
    setting.progress("  fold: with repeats")
    with report_log(spec_of("ss", N_SYMBOLS), n_reports, repeated=REPEATED) as log:
        yield _against(
            setting, log, "ss", log.read, "the same rows read from SQLite", None, f", {REPEATED:.0%} repeats"
        )
    setting.progress("  fold: from end to end")
    yield _whole(setting)
    setting.progress("  fold: memory")
    yield _memory(setting)


def _against(
    setting: Setting,
    log: ReportLog,
    kind: str,
    read: Callable[[], int],
    reference: str,
    bar: float | None,
    addition: str = "",
) -> Row:
    n_reports = log.closed.n_received
    worked: list[float] = []  # nanoseconds of all cores for each report, ours and theirs

    def rate(work: Callable[[], object], into: list[float]) -> float:
        def timed() -> None:
            before = time.process_time()
            work()
            into.append((time.process_time() - before) / n_reports * 1e9)

        return n_reports / seconds(timed)

    worked_reading: list[float] = []
    measured = in_turns(
        lambda: rate(lambda: fold_round(log.database, log.closed), worked),
        lambda: rate(read, worked_reading),
        setting.turns,
    )
    name = f"log to tally: {KINDS[kind]}{addition or ('' if bar else ', against the file')}"
    both = f"{median(worked):.0f} ns of processors a report, {median(worked_reading):.0f} of them reading"
    return compare(
        GROUP,
        name,
        f"{reference}, page cache",
        measured,
        unit="reports/s",
        more_is_better=True,
        bar=bar,
        note=f"{both}; {NOTES.get(kind, f'{n_reports:,} reports')}",
    )


def _whole(setting: Setting) -> Row:
    n_reports = WHOLE_REPORTS // 10 if setting.quick else WHOLE_REPORTS
    limit = WHOLE_SECONDS * n_reports / WHOLE_REPORTS
    with report_log(spec_of("ss", N_SYMBOLS), n_reports) as log, one_core():

        def estimated() -> None:
            folded = fold_round(log.database, log.closed)
            if folded.tally.n_reports != n_reports or folded.n_repeated or folded.n_malformed:
                raise Disagreement("the fold lost reports")
            decoder(log.closed.spec.mechanism).frequencies(_tally(folded))

        measured = in_turns(lambda: seconds(estimated), lambda: limit, min(3, setting.turns))
    note = "reading, checking, telling repeats, counting, estimating; held to one core"
    return compare(
        GROUP, f"log to estimate: {n_reports:,} ss, 169 symbols", "what was asked for", measured, bar=1.0, note=note
    )


@contextmanager
def one_core() -> Iterator[None]:
    """This thread, and those it starts, run on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _tally(folded: Folded) -> Tally:
    if not isinstance(folded.tally, Tally):
        raise TypeError("not a round of symbols")
    return folded.tally


def _memory(setting: Setting) -> Row:
    n_large = WHOLE_REPORTS // 10 if setting.quick else WHOLE_REPORTS
    spec = spec_of("ss", N_SYMBOLS)
    peaks = [_peak_of_fold(spec, n_reports) for n_reports in (SMALL_REPORTS, n_large)]
    ids = ID_BYTES * (n_large - SMALL_REPORTS) / 1e6
    grown = max(peaks[1] - peaks[0], 0.01)
    return compare(
        GROUP,
        f"peak memory, {SMALL_REPORTS:,} to {n_large:,} reports",
        "fingerprints of the ids alone",
        ([grown], [ids]),
        unit="MB",
        bar=MEMORY_SHARE,
        note=f"what it grows by, from {peaks[0]:.0f} MB; at 16.8 million ids it stops: more go to a file",
    )


def _peak_of_fold(spec: RoundSpec, n_reports: int) -> float:
    """Megabytes, of a process of its own."""
    with report_log(spec, n_reports) as log:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_fold_and_tell, args=(theirs, str(log.database.engine.url), log.closed.id)
        )
        process.start()
        theirs.close()
        peak: float = ours.recv()
        process.join()
    return peak


def _fold_and_tell(pipe: Connection, url: str, round_id: str) -> None:
    from benchmarks.speed.report_log import closing_database
    from models.round import Round

    with closing_database(url) as database:
        with database.reading() as session:
            closed = session.get_one(Round, round_id)
        fold_round(database, closed)
    pipe.send(_peak_megabytes())


def _peak_megabytes() -> float:
    """Of this process since it began, without what the one that started it held (`ru_maxrss` keeps that)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) * 1024 / 1e6
