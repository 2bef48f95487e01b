"""What a load run came to: figures, what is wrong with them, and a table for people."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.load.notes import Notes, Spread
from benchmarks.load.watch import Watch

MAX_TAIL = 10.0  # p99 of a report, in its p50
WAITS = frozenset({"long poll", "jobs", "behind"})  # whose times say nothing about the service


def figures(notes: Notes, watch: Watch, rounds: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The run as one JSON object; `rounds` as the service counts them in the end."""
    spreads = {kind: Spread.of(seconds) for kind, seconds in sorted(notes.seconds.items()) if kind != "jobs"}
    report = spreads["report"]
    lost = {
        round_id: n - (rounds[round_id]["n_reports"] or 0) if round_id in rounds else n
        for round_id, n in notes.acknowledged.items()
    }
    return {
        **asked,
        "jobs_done": len(notes.seconds["jobs"]),
        "milliseconds": {
            kind: {
                "n": s.n,
                **{name: round(getattr(s, name), 2) for name in ("p50", "p90", "p99", "p999")},
                "max": round(s.most, 2),
            }
            for kind, s in spreads.items()
        },
        "report_tail": round(report.p99 / report.p50, 2),
        "errors": dict(notes.errors),
        "unexpected_errors": sum(notes.unexpected.values()),
        "reports_acknowledged": sum(notes.acknowledged.values()),
        "reports_counted": sum(each["n_reports"] or 0 for each in rounds.values()),
        "reports_lost": sum(max(0, n) for n in lost.values()),
        "reports_too_many": sum(max(0, -n) for n in lost.values()),
        "memory_mb": {name: round(seen[-1], 1) for name, seen in sorted(watch.memory_mb.items())},
        "memory_growth_mb": {name: round(grown, 1) for name, grown in sorted(watch.growth_mb().items())},
        "database_connections": max(watch.connections, default=0),
        "load_average": [round(min(watch.load, default=0), 1), round(max(watch.load, default=0), 1)],
    }


def complaints(told: Mapping[str, Any], *, max_tail: float | None) -> list[str]:
    """What falls short; nothing, where all is as promised. Without `max_tail` times are not judged."""
    checks = {
        f"{told['unexpected_errors']} errors other than limits": told["unexpected_errors"] == 0,
        f"{told['reports_lost']} acknowledged reports were not counted": told["reports_lost"] == 0,
        f"{told['reports_too_many']} reports were counted that nobody sent": told["reports_too_many"] == 0,
        "no job came to its end": told["jobs_done"] > 0,
        f"p99 of a report is {told['report_tail']} times its p50": max_tail is None or told["report_tail"] <= max_tail,
    }
    return [complaint for complaint, holds in checks.items() if not holds]


def show(console: Console, told: Mapping[str, Any]) -> None:
    """For people."""
    table = Table(title="Milliseconds", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("request")
    for name in ("n", "p50", "p90", "p99", "p999", "max"):
        table.add_column(name, justify="right")
    for kind, spread in told["milliseconds"].items():
        if kind not in WAITS:
            table.add_row(kind, str(spread["n"]), *(f"{spread[k]:.1f}" for k in ("p50", "p90", "p99", "p999", "max")))
    console.print(table)
    for name in ("saturation_per_second", "rate_per_second", "report_tail", "errors", "reports_acknowledged",
                 "reports_counted", "reports_lost", "jobs_done", "memory_mb", "memory_growth_mb",
                 "database_connections", "load_average"):  # fmt: skip
        console.print(f"{name.replace('_', ' ')}: {told[name]}")
