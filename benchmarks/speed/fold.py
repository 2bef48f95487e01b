"""The fold: a report log becomes its tally, against the time to read the same bytes from the page cache."""

import multiprocessing
import resource
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from benchmarks.speed.agreement import Disagreement
from benchmarks.speed.report_log import ReportLog, report_log, spec_of
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.decoders import decoder
from clustering.plan import Tally
from sfumato.specs import RoundSpec
from workers.fold import Folded
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
ID_BYTES = 8 / 0.8 / 8 * 17  # of the set of ids: an id and its mark, at most four places of five taken
MEMORY_SHARE = 0.8  # of what memory grows by, that is to be the ids

HASHES = "one hash for each of 169 symbols and each report: what local hashing is"
SORTS = "a sample is kept in sorted order, so that it does not tell who was early"
NOTES = {"olh": HASHES, "discrete_laplace": SORTS}


def rows(setting: Setting) -> Iterator[Row]:
    """A row a mechanism, one against the plain file, one from end to end, one of memory."""
    n_reports = QUICK_REPORTS if setting.quick else N_REPORTS
    for kind in KINDS:
        setting.progress(f"  fold: {kind}")
        with report_log(spec_of(kind, N_SYMBOLS), n_reports) as log:
            fold_round(log.database, log.closed)  # compiled
            yield _against(setting, log, kind, log.read, "the same rows read from SQLite", SHARE)
            if kind == "ss":
                yield _against(setting, log, kind, log.read_file, "the database's file read as it is", None)
    setting.progress("  fold: from end to end")
    yield _whole(setting)
    setting.progress("  fold: memory")
    yield _memory(setting)


def _against(
    setting: Setting, log: ReportLog, kind: str, read: Callable[[], int], reference: str, bar: float | None
) -> Row:
    n_reports = log.closed.n_received

    def rate(work: Callable[[], object]) -> float:
        return n_reports / seconds(work)

    measured = in_turns(lambda: rate(lambda: fold_round(log.database, log.closed)), lambda: rate(read), setting.turns)
    name = f"log to tally: {KINDS[kind]}" + ("" if bar else ", against the file")
    return compare(
        GROUP,
        name,
        f"{reference}, page cache",
        measured,
        unit="reports/s",
        more_is_better=True,
        bar=bar,
        note=NOTES.get(kind, f"{n_reports:,} reports"),
    )


def _whole(setting: Setting) -> Row:
    n_reports = WHOLE_REPORTS // 10 if setting.quick else WHOLE_REPORTS
    limit = WHOLE_SECONDS * n_reports / WHOLE_REPORTS
    with report_log(spec_of("ss", N_SYMBOLS), n_reports) as log:

        def estimated() -> None:
            folded = fold_round(log.database, log.closed)
            if folded.tally.n_reports != n_reports or folded.n_repeated or folded.n_malformed:
                raise Disagreement("the fold lost reports")
            decoder(log.closed.spec.mechanism).frequencies(_tally(folded))

        measured = in_turns(lambda: seconds(estimated), lambda: limit, min(3, setting.turns))
    note = "reading, checking, telling repeats, counting, estimating; one thread"
    return compare(
        GROUP, f"log to estimate: {n_reports:,} ss, 169 symbols", "what was asked for", measured, bar=1.0, note=note
    )


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
        "the set of ids alone",
        ([grown], [ids]),
        unit="MB",
        bar=MEMORY_SHARE,
        note=f"what it grows by, from {peaks[0]:.0f} MB; at 16.8 million ids it stops: logs are read in parts then",
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
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576)
