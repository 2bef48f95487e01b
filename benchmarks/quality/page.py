"""Put measured tables and pictures into a page: between `<!-- begin: NAME -->` and `<!-- end: NAME -->`."""

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.quality import (
    central,
    central_charts,
    central_rows,
    central_tables,
    centroid_charts,
    centroid_rows,
    centroid_tables,
    centroids,
    charts,
    rows,
    tables,
)
from benchmarks.quality.central_rows import CentralRow, CentralSummary
from benchmarks.quality.centroid_rows import CentroidRow, CentroidSummary
from benchmarks.quality.data import SHAPES
from benchmarks.quality.local import newest
from benchmarks.quality.rows import Row, Summary

PICTURES = ("ari-given.svg", "ari-auto.svg", "maps.png", "centroids-rmse.svg", "centroids-nicv.svg", "central-nicv.svg")


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--results", type=Path, metavar="DIR", required=True, help="what `local`, `centroids` or `central` wrote"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", required=True, help="Markdown with marked blocks")
    parser.add_argument("--images", type=Path, metavar="DIR", help="pictures go here; left out, none is copied")


def run(options: argparse.Namespace) -> int:
    """Write the marked blocks anew of whatever the folder holds results of."""
    found = newest(rows.read(options.results / "results.csv"))
    of_centroids = centroids.newest(centroid_rows.read(options.results / centroids.RESULTS))
    of_records = central_rows.newest(central_rows.read(options.results / central.RESULTS))
    if not found and not of_centroids and not of_records:
        raise ValueError(f"there are no results in {options.results}")
    summaries = rows.summarise(found)
    centroid_summaries = centroid_rows.summarise(of_centroids)
    text = options.page.read_text(encoding="utf-8")
    bodies = blocks(summaries, found) if found else {}
    bodies |= centroid_blocks(centroid_summaries, of_centroids) if of_centroids else {}
    record_summaries = central_rows.summarise(of_records)
    bodies |= central_blocks(record_summaries, of_records) if of_records else {}
    for name, body in bodies.items():
        text = filled(text, name, body)
    options.page.write_text(text, encoding="utf-8")
    if options.images is not None:
        charts.write(options.results, summaries)
        centroid_charts.write(options.results, centroid_summaries)
        central_charts.write(options.results, record_summaries)
        for picture in PICTURES:
            if (options.results / picture).exists():
                shutil.copyfile(options.results / picture, options.images / f"benchmark-{picture}")
    return 0


def blocks(summaries: Sequence[Summary], found: Sequence[Row]) -> dict[str, str]:
    """What each block holds."""
    seeds = len({row.seed for row in found})
    versions = ", ".join(f"`{version}`" for version in sorted({row.version for row in found}))
    shapes = [s for s in summaries if s.set in SHAPES]
    sizes = sorted({s.n for s in shapes})
    names = [(name, n) for n in sizes for name in SHAPES]
    groups = [[s for s in shapes if (s.set, s.n) == which] for which in names]
    parts = [
        f"**{name}, {n:,} reports**\n\n{tables.ari_table(group)}"
        for (name, n), group in zip(names, groups, strict=True)
        if group
    ]
    epsilons = sorted({s.epsilon for s in summaries if s.epsilon is not None})
    overviews = [
        f"**ε = {epsilon:g}, K {way}**\n\n{tables.set_overview(summaries, epsilon, way)}"
        for way in ("given", "auto")
        for epsilon in epsilons
    ]
    return {
        "run": f"{len(found):,} runs, {seeds} seed{'s' * (seeds != 1)}; software {versions}.\n",
        "ten": tables.ten_sets(summaries),
        "shapes": "\n".join(parts),
        "sets": "\n".join(overviews),
    }


def centroid_blocks(summaries: Sequence[CentroidSummary], found: Sequence[CentroidRow]) -> dict[str, str]:
    """What each block of the centroids holds."""
    return {
        "centroids-run": centroid_tables.said_of(found),
        "centroids-judged": centroid_tables.judged(summaries),
        "centroids-rmse": centroid_tables.rmse_tables(summaries),
        "centroids-nicv": centroid_tables.nicv_tables(summaries),
        "centroids-ablation": centroid_tables.ablation_tables(summaries),
        "centroids-time": centroid_tables.time_table(summaries),
        "centroids-labels": centroid_tables.label_table(summaries),
        "centroids-regret": centroid_tables.regret_table(summaries),
    }


def central_blocks(summaries: Sequence[CentralSummary], found: Sequence[CentralRow]) -> dict[str, str]:
    """What each block of the central benchmark holds."""
    return {
        "central-run": central_tables.said_of(found),
        "central-nicv": central_tables.nicv_tables(summaries),
        "central-rcp": central_tables.rcp_table(summaries),
        "central-judged": central_tables.judged(summaries),
    }


def filled(text: str, name: str, body: str) -> str:
    """The text with the block of this name replaced.

    Raises
    ------
    ValueError
        The page has no such block.
    """
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), flags=re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no block {name}")
    return pattern.sub(lambda _: f"{begin}\n{body.strip()}\n{end}", text)
