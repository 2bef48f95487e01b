"""`python -m benchmarks.load`: load of many clients on a fleet of gateways and workers."""

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

from benchmarks.load import devices, report
from benchmarks.load.clients import Analyst, officer
from benchmarks.load.connection import EventLog
from benchmarks.load.devices import DeviceClient, RoundCache
from benchmarks.load.monitor import Monitor
from devservers.fleet import Fleet

SHARE = 0.5  # default load as a share of saturation; a higher load would measure the queue
SATURATION_SECONDS = 20.0
SATURATION_CLIENTS = 64
WARM_UP_SECONDS = 10.0  # uncounted start of the open loop: opens connections, fills caches


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    for name, kind, default, text in (
        ("--clients", int, 1000, "connections of devices"),
        ("--gateways", int, 3, "number of gateways"),
        ("--workers", int, 4, "number of workers"),
        ("--seconds", float, 600.0, "duration of the open loop"),
        ("--datasets", int, 4, "number of datasets, each with an analyst that runs one job after the other"),
        ("--rate", float, None, "devices a second; default: a share of saturation"),
        ("--share", float, SHARE, "share of saturation, if --rate is not given"),
        ("--job-seconds", float, 30.0, "approximate seconds until a round is full"),
        ("--raw", Path, None, "CSV file with the time and duration of each report"),
    ):
        parser.add_argument(name, type=kind, default=default, help=text)
    parser.add_argument("--no-tail", action="store_true", help="check errors and losses, not response times")
    line = "print one JSON object as the last line; all other output goes to stderr"
    parser.add_argument("--json", action="store_true", help=line)
    options = parser.parse_args(arguments)
    if min(options.clients, options.gateways, options.workers, options.datasets) < 1 or options.seconds <= 0:
        parser.error("--clients, --gateways, --workers and --datasets must be at least 1, --seconds above 0")
    return options


async def drive(options: argparse.Namespace, fleet: Fleet, monitor: Monitor, console: Console) -> dict[str, Any]:
    """Send the whole load to the fleet; return the figures."""
    log, urls = EventLog(), fleet.urls
    guess = options.rate or 200.0
    target = max(300, round(guess * options.job_seconds / options.datasets))
    analysts = [Analyst(urls[n % len(urls)], fleet.key, target, log) for n in range(options.datasets)]
    for analyst in analysts:
        await analyst.prepare()
    round_cache = RoundCache()
    clients = [
        # the devices of each dataset use all gateways
        DeviceClient(urls[n // len(analysts) % len(urls)], a.device_key, a.dataset_id, round_cache, log)
        for n in range(options.clients)
        for a in [analysts[n % len(analysts)]]
    ]
    batchers = [  # with a key for datasets, because a key for devices sends few reports in a request
        DeviceClient(urls[n % len(urls)], fleet.key, a.dataset_id, round_cache, log) for n, a in enumerate(analysts)
    ]
    stop = asyncio.Event()
    others = [asyncio.create_task(analyst.work(stop)) for analyst in analysts]
    others += [asyncio.create_task(devices.batches(batcher, stop)) for batcher in batchers]
    others.append(asyncio.create_task(officer(urls[-1], fleet.key, [a.dataset_id for a in analysts], stop, log)))
    saturation = None
    if options.rate is None:
        n = await devices.closed_loop(clients[:SATURATION_CLIENTS], SATURATION_SECONDS)
        saturation = round(n / SATURATION_SECONDS, 1)
        console.print(f"saturated at {saturation:g} devices a second, each with a request for the round and a report")
    rate = options.rate or options.share * (saturation or 0)
    for analyst in analysts:
        analyst.target_reports = max(300, round(rate * options.job_seconds / options.datasets))
    gc.collect()
    gc.freeze()
    await devices.open_loop(clients, rate, min(WARM_UP_SECONDS, options.seconds), log)
    log.reset()
    monitor.reset()
    console.print(f"{options.clients} clients, {rate:g} devices a second, {options.seconds:g} s")
    await devices.open_loop(clients, rate, options.seconds, log)
    stop.set()
    await asyncio.gather(*others)
    rounds: dict[str, Any] = {}
    for analyst in analysts:
        rounds |= await analyst.finish()
    for client in (*clients, *batchers):
        client.close()
    fleet.check()
    if options.raw is not None:
        options.raw.write_text("".join(f"{at:.4f},{took:.6f}\n" for at, took in sorted(log.at)))
    settings = {name: getattr(options, name) for name in ("clients", "gateways", "workers", "datasets", "seconds")}
    settings |= {"saturation_per_second": saturation, "rate_per_second": round(rate, 1)}
    return report.summarise(log, monitor, rounds, settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load. Return 1 if it misses a target."""
    options = parse(arguments)
    console = Console(stderr=options.json, highlight=False)
    # Clients share keys and an address, and analysts create datasets of one name.
    settings = {"SFUMATO_RATE_PER_KEY": "0", "SFUMATO_REPORTS_PER_ADDRESS": "0", "SFUMATO_SOURCE_LIMIT": "none"}
    with tempfile.TemporaryDirectory(prefix="sfumato-load-") as home:
        sizes = {"n_gateways": options.gateways, "n_workers": options.workers}
        with Fleet(Path(home), durable=True, settings=settings, **sizes) as fleet, Monitor(fleet) as monitor:
            summary = uvloop.run(drive(options, fleet, monitor, console))
    report.show(console, summary)
    wrong = report.failures(summary, max_tail=None if options.no_tail else report.MAX_TAIL)
    for failure in wrong:
        console.print(f"[bold red]target missed:[/] {failure}")
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
