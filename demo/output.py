"""Terminal output of the demo: progress, clusters, ledger and conclusion."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from demo.production import Comparison
from demo.scenario import DemoResult, Step
from sfumato.plotting import figures
from sfumato.plotting.shading import colour
from sfumato.privacy.accounting import NANO


class _Count(MofNCompleteColumn):
    """The count and the total of a step with a known total."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return super().render(task) if task.fields["counted"] else Text()


class ProgressBars:
    """A `ProgressListener` with one progress bar per step."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            _Count(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[Step, TaskID] = {}

    def begin(self, step: Step, total: int | None) -> None:
        """Add the bar of a step."""
        self._tasks[step] = self.progress.add_task(f"{step.value:<26}", total=total, counted=total is not None)

    def advance(self, step: Step, by: int) -> None:
        """Advance the bar of a step."""
        self.progress.advance(self._tasks[step], by)

    def end(self, step: Step) -> None:
        """Complete the bar of a step."""
        task = self.progress.tasks[self.progress.task_ids.index(self._tasks[step])]
        total = 1 if task.total is None else task.total
        self.progress.update(task.id, total=total, completed=total)


def _print_table(console: Console, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _right(heading: str) -> Column:
    return Column(heading, justify="right")


def print_clusters(console: Console, outcome: DemoResult, names: Sequence[str]) -> None:
    """Print one line per cluster: label, colour on the map, city, share and centre."""
    model = outcome.model
    axes = escape(", ".join(feature.name for feature in model.features))
    city = [Column("big city nearby")] if any(names) else []
    columns = [_right("label"), Column("colour"), *city, _right("share of people"), _right("centre")]
    rows = []
    for cluster in range(model.n_clusters):
        hue, value = colour(cluster)
        centre = "" if model.centroids is None else ", ".join(f"{v:.4g}" for v in model.centroids[cluster])
        name = [escape(names[cluster])] if any(names) else []
        rows.append([str(cluster), f"[{value}]■[/] {hue}", *name, figures.share(model, cluster), centre])
    _print_table(console, f"Clusters (centre: {axes})", columns, rows)


def print_ledger(console: Console, outcome: DemoResult) -> None:
    """Print the entries of the ledger with their balances."""
    fixed = (Column("kind"), Column("ε", justify="right", no_wrap=True), Column("for", no_wrap=True))
    rows = []
    for entry in outcome.ledger:
        amounts = (entry.granted_nano, entry.reserved_nano, entry.charged_nano)
        balance = [format_epsilon(nano) for nano in amounts]
        rows.append([entry.kind, format_epsilon(entry.epsilon_nano), escape(entry.reference), *balance])
    _print_table(console, "Ledger", [*fixed, *map(_right, ("granted", "reserved", "charged"))], rows)


def print_kills(console: Console, comparison: Comparison) -> None:
    """Print the killed processes and the comparison with the reference run."""
    rows = [[kill.what, f"{kill.at_seconds:.1f} s", escape(kill.where)] for kill in comparison.kills]
    _print_table(console, "Killed by SIGKILL", [Column("what"), _right("when"), Column("where")], rows)
    same = {True: "the same", False: "[red]not the same[/]"}
    console.print(
        f"{comparison.n_broken} requests were interrupted and repeated. The job had {comparison.n_claims} claims. "
        f"{comparison.n_devices:,} devices reported, {comparison.n_reports:,} reports count.\n"
        "An embedded reference run in SQLite, without kills, over the stored tally, has "
        f"{same[comparison.same_clusters]} clusters to the last bit and {same[comparison.same_ledger]} ledger entries."
    )


def format_epsilon(nano: int) -> str:
    """Return an amount of nano-epsilon as exact decimal text."""
    return f"{nano / NANO:.9f}".rstrip("0").rstrip(".")


def print_parties(console: Console, summary: dict[str, Any]) -> None:
    """Print what each party of the shuffled demo saw, both costs, and the comparison with the local dataset."""
    n_reports, local, epsilon = summary["reports"], summary["local_epsilon"], summary["shuffled_epsilon"]
    rows = [
        (
            "app backend",
            f"{n_reports:,} senders and times, with {summary['sealed_bytes']} bytes that are in no batch",
            "0",
        ),
        ("shuffler", f"{n_reports:,} senders with a sealed report each", "0"),
        (
            "service",
            f"{summary['reports_before_release']} reports before the release, then {n_reports:,} in random order",
            f"{epsilon:g}, δ {summary['shuffled_delta']:g}",
        ),
        ("both together", "perturbed reports with their senders", f"{local:g}"),
    ]
    _print_table(console, "What each party saw", [Column("party"), Column("saw"), _right("costs ε")], rows)
    console.print(
        f"[bold]At ε = {epsilon:g} towards the service[/], clusters agree with those of exact counts with an ARI of "
        f"{summary['ari_vs_unperturbed']:.3f} (verdict: {summary['verdict']}). Clusters of local reports at ε = "
        f"{summary['compared_epsilon']:g} agree with an ARI of {summary['local_ari_vs_unperturbed']:.3f} (verdict: "
        f"{summary['local_verdict']}).\n"
        f"Sealing took {summary['sealing_seconds']:.1f} s of CPU time, sending {summary['sending_seconds']:.1f} s.\n"
        f"Map: {escape(summary['svg'])}. It took {summary['seconds']:.1f} s.",
        soft_wrap=True,
    )


def print_conclusion(console: Console, summary: dict[str, Any]) -> None:
    """Print a summary in a few sentences."""
    verified = "its hash chain is valid" if summary["ledger_verified"] else "[red]its hash chain is broken[/]"
    console.print(
        f"\n[bold]{summary['reports']:,} people each sent one perturbed report at ε = {summary['epsilon']:g}.[/] "
        f"Clusters of perturbed reports and of exact counts agree with an ARI of {summary['ari_vs_unperturbed']:.3f} "
        + f"(verdict: {summary['verdict']})"
        + (f", with the labels of the data {summary['ari_vs_labels']:.3f}" if "ari_vs_labels" in summary else "")
        + f".\nThe ledger granted ε {summary['epsilon_granted']:g}, "
        + f"charged {summary['epsilon_charged']:.9g}; {verified}."
    )
    for warning in summary["warnings"]:
        console.print(f"[yellow]Note:[/] {escape(warning)}")
    paths = ", ".join(summary[kind] for kind in ("svg", "png", "result"))
    console.print(f"Files: {escape(paths)}\nIt took {summary['seconds']:.1f} s.", soft_wrap=True)
