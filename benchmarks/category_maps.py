"""Measure the stated agreement of maps of categories: `python -m benchmarks.category_maps RUNS.jsonl`.

The people of each category are a set of `benchmarks.coarse_maps`. A group of three runs has one population, with new
people and new noise in each run. The true agreement of a run is its mean adjusted Rand index with the other two, over
people of all categories. New groups are appended to RUNS.jsonl.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benchmarks.coarse_maps import FEATURES, GROUPS, SETS, Draw
from benchmarks.output import append_runs, read_runs
from benchmarks.verdicts import describe_intervals, describe_verdicts
from clustering.grids.shifted_grid import fit, shifted_grid
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy, collect
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.described import Described
from sfumato.specs import ShiftedGrid
from sfumato.specs.attributes import Categorical

RUNS = 3
N_JUDGED = 20_000  # people over which the runs are compared
OWN = 0.9  # share of the people of a set with the category of their own; the others have any category
LEVELS = ((2, 120_000), (4, 20_000), (1, 150_000), (2, 40_000))  # epsilon and number of reports
# sets of the categories, and their shares
POPULATIONS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "blob4 blob6": (("blob4", "blob6"), (0.5, 0.5)),
    "blob3 moons": (("blob3", "moons"), (0.4, 0.6)),
    "blob10 gauss": (("blob10", "gauss"), (0.7, 0.3)),
    "crescents ring_blob": (("crescents", "ring_blob"), (0.5, 0.5)),
    "blob5 uniform": (("blob5", "uniform"), (0.5, 0.5)),
    "g3x4 blob3": (("g3x4", "blob3"), (0.5, 0.5)),
    "student expo": (("student", "expo"), (0.5, 0.5)),
    "smile stripes": (("smile", "stripes"), (0.6, 0.4)),
    "blob6 blob5 blob4": (("blob6", "blob5", "blob4"), (0.4, 0.3, 0.3)),
    "g3x3wide blob_noise": (("g3x3wide", "blob_noise"), (0.5, 0.5)),
    "triangle rings": (("triangle", "rings"), (0.5, 0.5)),
    "blob8 ellipse moons": (("blob8", "ellipse", "moons"), (0.4, 0.3, 0.3)),
}  # fmt: skip

Row = dict[str, Any]
Points = NDArray[np.float64]
Codes = NDArray[np.int64]


def find_set(name: str) -> Draw:
    """Return a set of `benchmarks.coarse_maps`."""
    return next(sets[name] for part in (SETS, GROUPS) for sets in part.values() if name in sets)


def draw_people(name: str, seed: int, n: int) -> tuple[Points, Codes, int]:
    """Return the points of n people, their categories, and the number of clusters of all sets.

    One in ten has any category, in place of that of the set.
    """
    sets, shares = POPULATIONS[name]
    rng = np.random.default_rng([crc32(name.encode()), seed])
    own = rng.choice(len(shares), n, p=shares)
    points, n_clusters = np.empty((n, 2)), 0
    for place, each in enumerate(sets):
        is_own = own == place
        points[is_own], labels = find_set(each)(rng, int(is_own.sum()))
        n_clusters += int(labels.max()) + 1
    return points.clip(0, 1), np.where(rng.random(n) < OWN, own, rng.integers(0, len(shares), n)), n_clusters


def measure(name: str, seed: int, epsilon: float, n: int) -> Iterator[Row]:
    """Run one group with a counted and with a given number of clusters."""
    points, codes, n_clusters = draw_people(name, seed, RUNS * n + N_JUDGED)
    attribute = Categorical("plan", tuple(f"plan {place}" for place in range(len(POPULATIONS[name][0]))), use="cluster")
    judged = np.hstack([points, np.eye(len(attribute.categories))[codes]])[RUNS * n :]
    rounds = []
    for run in range(RUNS):
        entropy = SeededEntropy(crc32(f"{name} {seed} {epsilon} {run}".encode()))
        own = slice(run * n, (run + 1) * n)
        spec = next(shifted_grid(ShiftedGrid(epsilon), FEATURES, n, (attribute,)))
        rounds.append(collect(spec, Described(points[own], codes[own, None]), entropy, entropy.words(n)))
    for clusters in (None, n_clusters):
        models = [fit(ShiftedGrid(epsilon, clusters), each) for each in rounds]
        labels = [model.assign(judged) for model in models]
        for run, model in enumerate(models):
            others = [adjusted_rand_index(labels[run], each) for place, each in enumerate(labels) if place != run]
            yield {
                "population": name, "seed": seed, "epsilon": epsilon, "n": n, "run": run, "given": clusters is not None,
                "true_clusters": n_clusters, "clusters": model.n_clusters, "verdict": model.verdict.value,
                "agreement": float(np.mean(others)), **stated(model), "categories": list(describe_categories(model)),
            }  # fmt: skip


def stated(model: ClusterModel) -> Row:
    """Return the stated agreement of a run, with its interval."""
    expected = model.expected_agreement
    return {} if expected is None else {"value": expected.value, "lower": expected.lower, "upper": expected.upper}


def describe_categories(model: ClusterModel) -> Iterator[Row]:
    """Yield the figures of each category: agreements of its refits, its share, and the sum of the squared shares."""
    assert model.label_map is not None
    assert model.density is not None
    bumps = ("share", "clusters", "cluster_interval", "low_confidence", "undivided", "clearly_undivided")
    names = (*bumps, "stability", "halves", "between_halves", "scales", "gap")
    for place, row in enumerate(model.diagnostics["categories"]):
        masses = np.bincount(model.label_map[..., place].ravel(), model.density[..., place].ravel())
        yield {key: row[key] for key in names} | {"squares": float(((masses / masses.sum()) ** 2).sum())}


def report(rows: Sequence[Row]) -> Iterable[str]:
    """Return the figures of the runs as lines, with a counted and with a given number of clusters."""
    for given in (False, True):
        own = [row for row in rows if row["given"] == given and "value" in row]
        if not own:
            continue
        value, lower, upper, true = (
            np.array([row[key] for row in own]) for key in ("value", "lower", "upper", "agreement")
        )
        yield (
            f"{'given' if given else 'counted'}, {len(own)} runs: {describe_intervals(true, lower, upper)}; mean error "
            f"{np.abs(value - true).mean():.3f}; "
            f"{describe_verdicts('agreement', true, [row['verdict'] for row in own])}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the groups that are not in the file, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    options = parser.parse_args(arguments)
    rows = read_runs(options.runs)
    done = {(row["population"], row["seed"], row["epsilon"]) for row in rows}
    missing = (
        row
        for seed in options.seeds
        for place, name in enumerate(POPULATIONS)
        for epsilon, n in [LEVELS[(seed + place) % len(LEVELS)]]
        if (name, seed, epsilon) not in done
        for row in measure(name, seed, epsilon, n)
    )
    rows += append_runs(options.runs, missing)
    print("\n".join(report(rows)))


if __name__ == "__main__":
    main()
