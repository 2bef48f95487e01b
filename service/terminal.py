"""What the command line shows of a service: tables, and bars drawn with block characters."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sfumato.accounting import NANO, format_epsilon
from sfumato.resources import Dataset, Job
from sfumato.shading import colour

if TYPE_CHECKING:
    from service.reporting import Sent
    from sfumato.client import Client
    from sfumato.cluster_model import ClusterModel

BAR_CELLS = 24
ID_CELLS = 30
FILE_CELLS = 160  # a line where it goes to no terminal
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BLOCK, _HALF, _REST = "█", "▒", "░"


def console(*, stderr: bool = False) -> Console:
    """Where it goes; nothing in a name is taken for markup."""
    shown = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return shown if shown.is_terminal else Console(stderr=stderr, highlight=False, soft_wrap=True, width=FILE_CELLS)


def bar(part: float, whole: float) -> str:
    """A share as a bar of fixed width, to an eighth of a cell."""
    share = min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
    full, eighths = divmod(round(share * BAR_CELLS * 8), 8)
    return (_BLOCK * full + (_EIGHTHS[eighths] if eighths else "")).ljust(BAR_CELLS)


def budget_bar(granted_nano: int, posted_nano: int, reserved_nano: int) -> str:
    """Spent, held, left: the first two are rounded up, so that what is spent is never invisible."""
    if granted_nano <= 0:
        return _REST * BAR_CELLS
    posted = -(-posted_nano * BAR_CELLS // granted_nano)
    held = min(-(-reserved_nano * BAR_CELLS // granted_nano), BAR_CELLS - posted)
    return _BLOCK * posted + _HALF * held + _REST * (BAR_CELLS - posted - held)


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table; the columns named in `numbers` stand to the right."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        width = ID_CELLS if name in ("id", "round", "job") else None  # an id that is cut is none
        justify: JustifyMethod = "right" if name in numbers else "left"
        made.add_column(name, justify=justify, no_wrap=width is not None, min_width=width, overflow="fold")
    return made


# ---- datasets and jobs ----


def datasets(to: Console, client: "Client") -> None:
    """A line a dataset; its budget where the key may see it."""
    from sfumato.errors import ApiProblem

    found = table("id", "name", "trust", "features", f"{_BLOCK} spent {_HALF} held {_REST} left", "ε left", "ε granted",
                  numbers=("features", "ε left", "ε granted"))  # fmt: skip
    for each in client.datasets():
        try:
            budget = client.budget(each.id)
        except ApiProblem as problem:
            if problem.status not in (403, 404):
                raise
            found.add_row(*_named(each), "", "", "")
            continue
        balance = budget.balance
        drawn = budget_bar(balance.granted_nano, balance.posted_nano, balance.reserved_nano)
        found.add_row(*_named(each), drawn, _epsilon(budget.remaining_nano), _epsilon(balance.granted_nano))
    to.print(found if found.row_count else "There are no datasets yet.")


def _named(dataset: Dataset) -> tuple[str, str, str, str]:
    return dataset.id, escape(_plain(dataset.name)), dataset.trust, str(len(dataset.features))


def _plain(text: str) -> str:
    """A name without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _epsilon(nano: int) -> str:
    return format_epsilon(nano)


def jobs(to: Console, found: Iterable[Job]) -> None:
    """A line a job."""
    shown = table("id", "state", "algorithm", "ε", "rounds", "submitted", numbers=("ε", "rounds"))
    for each in found:
        rounds = str(each.progress.rounds_opened)
        submitted = f"{each.created_at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(each.id, each.state, str(each.algorithm["type"]), f"{each.epsilon:g}", rounds, submitted)
    to.print(shown if shown.row_count else "There are no jobs yet.")


def watch(to: Console, client: "Client", job_id: str, timeout_seconds: float | None) -> bool:
    """Show a job until it is over, then what it came to; whether it succeeded.

    On a terminal one table is drawn anew; elsewhere a line is written whenever something changed.
    """
    if to.is_terminal:
        with Live(console=to, auto_refresh=False) as live:
            done = client.wait_for_job(
                job_id,
                timeout_seconds=timeout_seconds,
                on_progress=lambda job: live.update(_standing(job), refresh=True),
            )
    else:
        told: list[str] = []

        def tell(job: Job) -> None:
            line = _line(job)
            if told[-1:] != [line]:
                told.append(line)
                to.print(line, markup=False)

        done = client.wait_for_job(job_id, timeout_seconds=timeout_seconds, on_progress=tell)
    if done.state == "succeeded":
        result = client.result(job_id)
        clusters(to, result.model)
        to.print(f"It spent ε {result.epsilon:g}. Its picture: sfumato plot {job_id}")
        return True
    if done.error is not None:
        to.print(f"{done.error.code}: {done.error.detail or ''}", markup=False)
    return False


def _line(job: Job) -> str:
    progress = job.progress
    waiting = job.state == "collecting" and progress.target_reports
    filled = f", {progress.n_received:,} of {progress.target_reports:,} reports" if waiting else ""
    return f"{job.id} {job.state}, rounds opened: {progress.rounds_opened}{filled}"


def _standing(job: Job) -> Table:
    shown = table("job", "state", "rounds", "reports of the open round", "", numbers=("rounds",))
    progress = job.progress
    drawn = counted = ""
    if job.state == "collecting" and progress.target_reports:
        drawn = bar(progress.n_received, progress.target_reports)
        counted = f"{progress.n_received:,} of {progress.target_reports:,}"
    shown.add_row(job.id, job.state, str(progress.rounds_opened), drawn, counted)
    return shown


def clusters(to: Console, model: "ClusterModel", most: int = 50) -> None:
    """A line a cluster: its share as a bar in its colour on the map, and its centre."""
    from sfumato.plot import share

    names = [feature.name for feature in model.features] if model.centroids is not None else []
    columns = [escape(_plain(name)) for name in names[:4]]
    shown = table("cluster", "", "share of people ± standard error", *columns, numbers=("cluster", *columns))
    largest = max(model.sizes.tolist(), default=0.0)
    for cluster in range(min(model.n_clusters, most)):
        hue = colour(cluster)[1]
        centre = [] if model.centroids is None else [f"{value:.4g}" for value in model.centroids[cluster, :4]]
        drawn = f"[{hue}]{bar(float(model.sizes[cluster]), largest)}[/]"
        shown.add_row(str(cluster), drawn, share(model, cluster), *centre)
    to.print(shown if shown.row_count else "No cluster stands out from the noise.")
    if model.n_clusters > most:
        to.print(f"and {model.n_clusters - most} more")
    for warning in model.warnings:
        to.print(f"Note: {warning}", markup=False)


# ---- reports ----


def sent(to: Console, rounds: Sequence["Sent"]) -> None:
    """What went to each round, what an answer cost a person, and how full the round is now."""
    shown = table("round", "reports sent", "ε a person", "full", "", numbers=("reports sent", "ε a person"))
    for each in rounds:
        full = bar(each.round.n_received, each.round.target_reports)
        counted = f"{each.round.n_received:,} of {each.round.target_reports:,}"
        cost = _epsilon(round(each.round.epsilon * NANO))
        shown.add_row(each.round.id, f"{each.n_sent:,}", cost, full, counted)
    to.print(shown)
