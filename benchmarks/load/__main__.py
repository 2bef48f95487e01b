"""`python -m benchmarks.load`: a fleet of its own under many clients, and what they saw."""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.load import crowd, figures, people
from benchmarks.load.crowd import Client, Offers
from benchmarks.load.notes import Notes
from benchmarks.load.people import Analyst
from benchmarks.load.watch import Watch
from demo.fleet import Fleet

SHARE = 0.5  # of what saturates: beyond, the queue is what one measures
SATURATION_SECONDS = 20.0
SATURATION_CLIENTS = 64
WARM_UP_SECONDS = 10.0  # of the open loop, not counted: connections are made, caches fill


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="devices' connections")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the open loop")
    parser.add_argument("--datasets", type=int, default=4, help="an analyst each, whose jobs follow one another")
    parser.add_argument("--rate", type=float, help="devices a second; by default a share of what saturates")
    parser.add_argument("--share", type=float, default=SHARE, help="of what saturates")
    parser.add_argument("--job-seconds", type=float, default=30.0, help="about how long a round takes to fill")
    parser.add_argument("--no-tail", action="store_true", help="judge errors and losses, no times")
    parser.add_argument("--raw", type=Path, help="when each report was sent and how long it took, as CSV")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line; all else to stderr")
    options = parser.parse_args(arguments)
    if min(options.clients, options.gateways, options.workers, options.datasets) < 1 or options.seconds <= 0:
        parser.error("there is at least one of each, for some time")
    return options


async def drive(options: argparse.Namespace, fleet: Fleet, watch: Watch, console: Console) -> dict[str, Any]:
    """Everything that is asked of the fleet, and what came of it."""
    notes, urls = Notes(), fleet.urls
    guess = options.rate or 200.0
    target = max(300, round(guess * options.job_seconds / options.datasets))
    analysts = [Analyst(urls[n % len(urls)], fleet.key, target, notes) for n in range(options.datasets)]
    for analyst in analysts:
        await analyst.prepare()
    offers = Offers()
    clients = [
        # clients and datasets are dealt out so that each dataset's devices are at all gateways
        Client(urls[n // len(analysts) % len(urls)], a.device_key, a.dataset_id, offers, notes)
        for n in range(options.clients)
        for a in [analysts[n % len(analysts)]]
    ]
    batchers = [Client(urls[n % len(urls)], a.device_key, a.dataset_id, offers, notes) for n, a in enumerate(analysts)]
    stop = asyncio.Event()
    others = [asyncio.create_task(analyst.work(stop)) for analyst in analysts]
    others += [asyncio.create_task(crowd.batches(batcher, stop)) for batcher in batchers]
    others.append(
        asyncio.create_task(people.officer(urls[-1], fleet.key, [a.dataset_id for a in analysts], stop, notes))
    )
    saturation = None
    if options.rate is None:
        n = await crowd.closed_loop(clients[:SATURATION_CLIENTS], SATURATION_SECONDS)
        saturation = round(n / SATURATION_SECONDS, 1)
        console.print(f"saturated at {saturation:g} devices a second, each asking for the round and reporting")
    rate = options.rate or options.share * (saturation or 0)
    for analyst in analysts:
        analyst.target_reports = max(300, round(rate * options.job_seconds / options.datasets))
    gc.collect()
    gc.freeze()
    await crowd.open_loop(clients, rate, min(WARM_UP_SECONDS, options.seconds), notes)
    notes.forget()
    watch.begin_anew()
    console.print(f"{options.clients} clients, {rate:g} devices a second, {options.seconds:g} s")
    await crowd.open_loop(clients, rate, options.seconds, notes)
    stop.set()
    await asyncio.gather(*others)
    rounds: dict[str, Any] = {}
    for analyst in analysts:
        rounds |= await analyst.finish()
    for client in (*clients, *batchers):
        client.close()
    fleet.check()
    if options.raw is not None:
        options.raw.write_text("".join(f"{at:.4f},{took:.6f}\n" for at, took in sorted(notes.at)))
    asked = {name: getattr(options, name) for name in ("clients", "gateways", "workers", "datasets", "seconds")}
    asked |= {"saturation_per_second": saturation, "rate_per_second": round(rate, 1)}
    return figures.figures(notes, watch, rounds, asked)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where it falls short."""
    options = read(arguments)
    console = Console(stderr=options.json, highlight=False)
    settings = {"SFUMATO_RATE_PER_KEY": "0"}  # the four analysts and the officer share one key
    with tempfile.TemporaryDirectory(prefix="sfumato-load-") as home:
        sizes = {"n_gateways": options.gateways, "n_workers": options.workers}
        with Fleet(Path(home), durable=True, settings=settings, **sizes) as fleet, Watch(fleet) as watch:
            told = uvloop.run(drive(options, fleet, watch, console))
    figures.show(console, told)
    wrong = figures.complaints(told, max_tail=None if options.no_tail else figures.MAX_TAIL)
    for complaint in wrong:
        console.print(f"[bold red]falls short:[/] {complaint}")
    if options.json:
        sys.stdout.write(json.dumps(told) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
