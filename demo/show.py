"""The demo on a terminal: progress, the clusters, the ledger, the last word."""

from collections.abc import Sequence
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
from rich.table import Table
from rich.text import Text

from demo.production import Proof
from demo.story import Ending, Step
from sfumato import plot
from sfumato.accounting import NANO
from sfumato.shading import colour


class _Count(MofNCompleteColumn):
    """So many of so many, where that is known beforehand."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["counted"] else Text()


class Bars:
    """A progress bar a step; a `Watcher`."""

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
        """See `Watcher.begin`."""
        self._tasks[step] = self.progress.add_task(f"{step.value:<26}", total=total, counted=total is not None)

    def advance(self, step: Step, by: int) -> None:
        """See `Watcher.advance`."""
        self.progress.advance(self._tasks[step], by)

    def end(self, step: Step) -> None:
        """See `Watcher.end`."""
        task = self.progress.tasks[self.progress.task_ids.index(self._tasks[step])]
        total = 1 if task.total is None else task.total
        self.progress.update(task.id, total=total, completed=total)


def clusters(console: Console, ending: Ending, names: Sequence[str]) -> None:
    """One line a cluster: label, colour on the map, a city to know it by, share, centre."""
    model = ending.model
    axes = escape(", ".join(feature.name for feature in model.features))
    table = Table(title=f"Clusters (centre: {axes})", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("label", justify="right")
    table.add_column("colour")
    if any(names):
        table.add_column("big city nearby")
    table.add_column("share of people", justify="right")
    table.add_column("centre", justify="right")
    for cluster in range(model.n_clusters):
        hue, value = colour(cluster)
        centre = "" if model.centroids is None else ", ".join(f"{v:.4g}" for v in model.centroids[cluster])
        name = [escape(names[cluster])] if any(names) else []
        table.add_row(str(cluster), f"[{value}]■[/] {hue}", *name, plot.share(model, cluster), centre)
    console.print(table)


def ledger(console: Console, ending: Ending) -> None:
    """Every entry with the balance after it."""
    table = Table(title="Ledger", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("kind")
    table.add_column("ε", justify="right", no_wrap=True)
    table.add_column("for", no_wrap=True)
    table.add_column("granted", justify="right")
    table.add_column("reserved", justify="right")
    table.add_column("posted", justify="right")
    for entry in ending.ledger:
        amounts = (entry.granted_nano, entry.reserved_nano, entry.posted_nano)
        balance = [epsilon(nano) for nano in amounts]
        table.add_row(entry.kind, epsilon(entry.epsilon_nano), escape(entry.reference), *balance)
    console.print(table)


def accidents(console: Console, proof: Proof) -> None:
    """What was killed, and that nobody missed it."""
    table = Table(title="Killed by SIGKILL", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("when", justify="right")
    table.add_column("where")
    for accident in proof.accidents:
        table.add_row(accident.what, f"{accident.at_seconds:.1f} s", escape(accident.where))
    console.print(table)
    same = {True: "the same", False: "[red]not the same[/]"}
    console.print(
        f"{proof.n_broken} requests broke off and were sent again; the job was claimed {proof.n_claims} times. "
        f"{proof.n_devices:,} devices reported, {proof.n_reports:,} reports count.\n"
        "Beside an embedded twin, in SQLite and without accidents, over the tally that was stored: "
        f"{same[proof.same_clusters]} clusters to the last bit, {same[proof.same_ledger]} entries in the ledger."
    )


def epsilon(nano: int) -> str:
    """Nano-epsilon, exactly."""
    return f"{nano / NANO:.9f}".rstrip("0").rstrip(".")


def last_word(console: Console, told: dict[str, Any]) -> None:
    """What it came to, in a few sentences."""
    verified = "every hash of its chain holds" if told["ledger_verified"] else "[red]its chain does not hold[/]"
    console.print(
        f"\n[bold]{told['reports']:,} people each sent one blurred report at ε = {told['epsilon']:g}.[/] "
        f"Clusters of the blurred reports and of exact counts agree to an ARI of {told['ari_vs_unperturbed']:.3f}"
        + (f", with the data's own labels to {told['ari_vs_labels']:.3f}" if "ari_vs_labels" in told else "")
        + f".\nThe ledger granted ε {told['epsilon_granted']:g} and posted {told['epsilon_posted']:.9g}; {verified}."
    )
    for warning in told["warnings"]:
        console.print(f"[yellow]Note:[/] {escape(warning)}")
    paths = ", ".join(told[kind] for kind in ("svg", "png", "result"))
    console.print(f"Written: {escape(paths)}\nIt took {told['seconds']:.1f} s.", soft_wrap=True)
