"""Measure the verdict on maps that are far from the true clusters: `python -m benchmarks.coarse_maps RUNS.jsonl`.

The sets are shapes, blobs, lattices, noise, one cluster, and groups of clusters. Their coarse divisions come out
again.
The limits of the verdict were chosen on the sets `tuning`; `other` has other sets of the same kinds. No number of
clusters is given. A map of several clusters has the index 0 where there is one. New runs are appended to RUNS.jsonl.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import pi
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benchmarks.output import append_runs, read_runs
from benchmarks.verdicts import describe_verdicts
from clustering.grids.shifted_grid import fit, shifted_grid
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy, collect
from sfumato.specs import Feature, ShiftedGrid

FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1))
# epsilon and number of reports; those above 5 are of devices behind a shuffler
LEVELS = (
    (0.5, 150_000), (1, 20_000), (1, 60_000), (1, 150_000), (2, 20_000), (2, 60_000), (4, 20_000), (4, 60_000),
    (5.5, 60_000), (7, 60_000),
)  # fmt: skip
LEVELS_OF_GROUPS = ((2, 150_000), (1, 150_000), (4, 60_000), (4, 150_000), (2, 60_000))
HALVES = ("tuning", "other")

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Sample = tuple[Points, Labels]
Rng = np.random.Generator
Draw = Callable[[Rng, int], Sample]
Row = dict[str, Any]


def draw_centres(rng: Rng, clusters: int, apart: float, margin: float) -> list[Points]:
    """Return centres with this least distance inside of a margin. The distance becomes smaller if there is no room."""
    centres: list[Points] = []
    while len(centres) < clusters:
        place = rng.uniform(margin, 1 - margin, 2)
        if all(np.hypot(*(place - other)) > apart for other in centres):
            centres.append(place)
        elif rng.random() < 0.02:
            apart *= 0.95
    return centres


def blobs(clusters: int, spread: float, is_unequal: bool, apart: float, rng: Rng, n: int) -> Sample:
    """Return round clusters."""
    centres = np.array(draw_centres(rng, clusters, apart, 0.1))
    shares = rng.dirichlet(np.full(clusters, 5.0)) if is_unequal else np.full(clusters, 1 / clusters)
    labels = rng.choice(clusters, n, p=shares)
    spreads = spread * rng.uniform(0.6, 1.4, clusters) if is_unequal else np.full(clusters, spread)
    return centres[labels] + rng.normal(0, 1, (n, 2)) * spreads[labels][:, None], labels


def groups(
    n_groups: int, size: int, radius: float, spread: float, is_unequal: bool, apart: float, rng: Rng, n: int,
    *, in_line: bool = False,
) -> Sample:  # fmt: skip
    """Return groups of round clusters on circles of this radius, or on lines with this distance."""
    places: list[Points] = []
    for centre in draw_centres(rng, n_groups, apart, 0.17):
        members = int(rng.integers(1, 2 * size)) if is_unequal else size
        for j in range(members):
            angle = 2 * pi * j / members + rng.random() * 0.3
            away = radius * np.array([np.cos(angle), np.sin(angle)])
            if in_line:
                turn = n_groups * centre[0] * 9
                away = (j - (members - 1) / 2) * radius * np.array([np.cos(turn), np.sin(turn)])
            places.append(centre + (away if members > 1 else 0))
    shares = rng.dirichlet(np.full(len(places), 6.0)) if is_unequal else np.full(len(places), 1 / len(places))
    labels = rng.choice(len(places), n, p=shares)
    return np.array(places)[labels] + rng.normal(0, spread, (n, 2)), labels


def arcs(noise: float, parts: Sequence[tuple[float, ...]], rng: Rng, n: int) -> Sample:
    """Return arcs (x, y, radius, first angle, last angle, weight)."""
    weights = np.array([part[5] for part in parts])
    labels = rng.choice(len(parts), n, p=weights / weights.sum())
    own = np.array([part[:5] for part in parts])[labels]
    angle = own[:, 3] + rng.random(n) * (own[:, 4] - own[:, 3])
    ends = np.column_stack([np.cos(angle), np.sin(angle)])
    return own[:, :2] + own[:, 2:3] * ends + rng.normal(0, noise, (n, 2)), labels


def bars(noise: float, parts: Sequence[tuple[float, ...]], rng: Rng, n: int) -> Sample:
    """Return straight bars (x, y, other x, other y, weight)."""
    own = np.array(parts)
    labels = rng.choice(len(own), n, p=own[:, 4] / own[:, 4].sum())
    along = rng.random(n)[:, None]
    places = own[labels, :2] * (1 - along) + own[labels, 2:4] * along
    return places + rng.normal(0, noise, (n, 2)), labels


def lattice(side: int, spread: float, rng: Rng, n: int) -> Sample:
    """Return side² round clusters on a lattice."""
    labels = rng.integers(0, side**2, n)
    places = np.column_stack([(labels % side + 0.5) / side, (labels // side + 0.5) / side]) * 0.84 + 0.08
    return places + rng.normal(0, spread, (n, 2)), labels


def wave(clusters: int, spread: float, rng: Rng, n: int) -> Sample:
    """Return round clusters along a sine."""
    labels = rng.integers(0, clusters, n)
    x = (labels + 0.5) / clusters
    return np.column_stack([0.08 + 0.84 * x, 0.5 + 0.33 * np.sin(3 * pi * x)]) + rng.normal(0, spread, (n, 2)), labels


def spirals(arms: int, turns: float, noise: float, rng: Rng, n: int) -> Sample:
    """Return the arms of a spiral."""
    labels, along = rng.integers(0, arms, n), np.sqrt(rng.uniform(0.05, 1, n))
    angle = 2 * pi * labels / arms + along * turns * 2 * pi
    ends = 0.38 * along[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return 0.5 + ends + rng.normal(0, noise, (n, 2)), labels


def one(points: Callable[[Rng, int], Points], rng: Rng, n: int) -> Sample:
    """Return one cluster."""
    return points(rng, n), np.zeros(n, dtype=np.int64)


def mixed(draw: Draw, other: Draw, share: float, rng: Rng, n: int) -> Sample:
    """Return a mixture of two sets."""
    (points, labels), (more, further) = draw(rng, n), other(rng, n)
    is_first = rng.random(n) < share
    places = np.where(is_first[:, None], points, more)
    return places, np.where(is_first, labels, further + labels.max() + 1)


def _even(rng: Rng, n: int) -> Points:
    return rng.random((n, 2))


_FACE = [(0.5, 0.5, 0.38, 0, 2 * pi, 4), (0.35, 0.62, 0.04, 0, 2 * pi, 1), (0.65, 0.62, 0.04, 0, 2 * pi, 1),
         (0.5, 0.5, 0.2, pi * 1.15, pi * 1.85, 1.5)]  # fmt: skip
_NOSED = [(0.5, 0.5, 0.4, 0, 2 * pi, 3), (0.34, 0.64, 0.02, 0, 2 * pi, 1), (0.66, 0.64, 0.02, 0, 2 * pi, 1),
          (0.5, 0.52, 0.02, 0, 2 * pi, 1), (0.5, 0.52, 0.24, pi * 1.2, pi * 1.8, 1.5)]  # fmt: skip
_MOONS = [(0.38, 0.42, 0.25, 0, pi, 1), (0.62, 0.55, 0.25, pi, 2 * pi, 1)]
_RINGS = [(0.5, 0.5, 0.38, 0, 2 * pi, 2), (0.5, 0.5, 0.15, 0, 2 * pi, 1)]
_THREE_RINGS = [(0.3, 0.35, 0.15, 0, 2 * pi, 1), (0.68, 0.65, 0.2, 0, 2 * pi, 1.5), (0.68, 0.65, 0.03, 0, 2 * pi, 0.5)]
_CRESCENTS = [(0.35, 0.5, 0.28, pi * 0.4, pi * 1.6, 1), (0.65, 0.5, 0.28, -pi * 0.6, pi * 0.6, 1),
              (0.5, 0.5, 0.04, 0, 2 * pi, 0.6)]  # fmt: skip
_RING_AND_BLOB = [(0.5, 0.5, 0.36, 0, 2 * pi, 2), (0.5, 0.5, 0.05, 0, 2 * pi, 1)]
_CONCENTRIC = [(0.5, 0.5, 0.42, 0, 2 * pi, 2), (0.5, 0.5, 0.26, 0, 2 * pi, 1.3), (0.5, 0.5, 0.08, 0, 2 * pi, 0.7)]
_STRIPES = [(x, 0.1, x, 0.9, 1) for x in (0.15, 0.4, 0.6, 0.85)]
_LETTERS = [(0.1, 0.2, 0.1, 0.8, 1), (0.2, 0.5, 0.45, 0.5, 1), (0.55, 0.2, 0.9, 0.2, 1), (0.55, 0.4, 0.9, 0.85, 1)]
_FAN = [(0.2, 0.1, 0.1, 0.9, 1), (0.35, 0.1, 0.4, 0.9, 1), (0.55, 0.1, 0.65, 0.9, 1), (0.75, 0.1, 0.92, 0.9, 1),
        (0.5, 0.02, 0.6, 0.02, 0.3)]  # fmt: skip
_LINES = [(0.1, 0.15, 0.45, 0.15, 1), (0.55, 0.15, 0.9, 0.15, 1), (0.1, 0.5, 0.9, 0.5, 2), (0.1, 0.85, 0.3, 0.85, 0.5),
          (0.45, 0.85, 0.9, 0.85, 1)]  # fmt: skip

SETS: dict[str, dict[str, Draw]] = {
    "tuning": {
        "blob3": partial(blobs, 3, 0.06, True, 0.25), "blob5": partial(blobs, 5, 0.05, False, 0.2),
        "blob8": partial(blobs, 8, 0.04, True, 0.14), "blob12": partial(blobs, 12, 0.03, False, 0.12),
        "blob20": partial(blobs, 20, 0.025, True, 0.1), "blob35": partial(blobs, 35, 0.018, False, 0.07),
        "moons": partial(arcs, 0.025, _MOONS), "rings": partial(arcs, 0.02, _RINGS),
        "smile": partial(arcs, 0.015, _FACE), "three_rings": partial(arcs, 0.015, _THREE_RINGS),
        "birch25": partial(lattice, 5, 0.025), "birch64": partial(lattice, 8, 0.018),
        "sine30": partial(wave, 30, 0.012), "stripes": partial(bars, 0.02, _STRIPES),
        "spiral3": partial(spirals, 3, 0.6, 0.012), "letters": partial(bars, 0.02, _LETTERS),
        "blob_noise": partial(mixed, partial(blobs, 6, 0.04, True, 0.2), partial(one, _even), 0.7),
        "dense_pairs": partial(mixed, partial(blobs, 10, 0.02, False, 0.07), partial(blobs, 2, 0.1, True, 0.3), 0.7),
        "gauss": partial(one, lambda rng, n: rng.normal(0.5, 0.13, (n, 2))), "uniform": partial(one, _even),
        "expo": partial(one, lambda rng, n: 0.05 + rng.exponential(0.13, (n, 2))),
        "lognormal": partial(one, lambda rng, n: 0.1 * rng.lognormal(0, 0.8, (n, 2))),
    },
    "other": {
        "blob4": partial(blobs, 4, 0.06, True, 0.22), "blob6": partial(blobs, 6, 0.045, False, 0.18),
        "blob10": partial(blobs, 10, 0.035, True, 0.13), "blob15": partial(blobs, 15, 0.028, False, 0.11),
        "blob25": partial(blobs, 25, 0.02, True, 0.09), "blob50": partial(blobs, 50, 0.014, False, 0.06),
        "crescents": partial(arcs, 0.02, _CRESCENTS), "ring_blob": partial(arcs, 0.025, _RING_AND_BLOB),
        "smile2": partial(arcs, 0.012, _NOSED), "three_conc": partial(arcs, 0.015, _CONCENTRIC),
        "birch36": partial(lattice, 6, 0.022), "birch100": partial(lattice, 10, 0.014),
        "sine50": partial(wave, 50, 0.008), "fan": partial(bars, 0.018, _FAN),
        "spiral2": partial(spirals, 2, 1.1, 0.015), "grid_lines": partial(bars, 0.02, _LINES),
        "blob_noise2": partial(mixed, partial(blobs, 9, 0.03, True, 0.17), partial(one, _even), 0.6),
        "nested": partial(mixed, partial(blobs, 6, 0.02, True, 0.1), partial(blobs, 3, 0.08, True, 0.28), 0.5),
        "student": partial(one, lambda rng, n: 0.5 + 0.06 * rng.standard_t(3, (n, 2))),
        "triangle": partial(one, lambda rng, n: np.sort(rng.random((n, 2)), axis=1)),
        "pareto": partial(one, lambda rng, n: 0.05 + 0.1 * rng.pareto(3, (n, 2))),
        "ellipse": partial(one, lambda rng, n: 0.5 + rng.normal(0, 1, (n, 2)) @ np.array([[0.16, 0.1], [0, 0.04]])),
    },
}  # fmt: skip
GROUPS: dict[str, dict[str, Draw]] = {
    "tuning": {
        "g3x4": partial(groups, 3, 4, 0.1, 0.03, False, 0.42), "g2x6": partial(groups, 2, 6, 0.14, 0.025, False, 0.5),
        "g4x3u": partial(groups, 4, 3, 0.09, 0.028, True, 0.38), "g5x5": partial(groups, 5, 5, 0.09, 0.02, False, 0.33),
        "g3line5": partial(groups, 3, 5, 0.07, 0.02, False, 0.4, in_line=True),
        "g2x3wide": partial(groups, 2, 3, 0.13, 0.045, True, 0.5),
        "g6x3": partial(groups, 6, 3, 0.07, 0.022, False, 0.3),
        "g2x12": partial(groups, 2, 12, 0.16, 0.018, False, 0.5),
    },
    "other": {
        "g3x5": partial(groups, 3, 5, 0.11, 0.028, False, 0.42), "g2x7u": partial(groups, 2, 7, 0.15, 0.024, True, 0.5),
        "g4x4": partial(groups, 4, 4, 0.1, 0.026, False, 0.38), "g5x3u": partial(groups, 5, 3, 0.08, 0.025, True, 0.33),
        "g4line4": partial(groups, 4, 4, 0.07, 0.02, False, 0.38, in_line=True),
        "g3x3wide": partial(groups, 3, 3, 0.12, 0.04, False, 0.42),
        "g7x3": partial(groups, 7, 3, 0.065, 0.02, False, 0.28),
        "g2x10": partial(groups, 2, 10, 0.17, 0.022, False, 0.5),
    },
}  # fmt: skip


def choose_runs(half: str, seeds: Iterable[int]) -> Iterator[tuple[str, Draw, int, float, int]]:
    """Yield the name, the set, the seed, epsilon and the number of reports of each run. Levels differ by set."""
    for seed in seeds:
        for place, (name, draw) in enumerate(GROUPS[half].items()):
            yield name, draw, seed, *LEVELS_OF_GROUPS[(seed + place) % len(LEVELS_OF_GROUPS)]
        for place, (name, draw) in enumerate(SETS[half].items()):
            yield name, draw, seed, *LEVELS[(3 * seed + 7 * place) % len(LEVELS)]


def measure(half: str, name: str, draw: Draw, seed: int, epsilon: float, n: int) -> Row:
    """Run one set."""
    points, labels = draw(np.random.default_rng([crc32(name.encode()), seed]), n)
    points = points.clip(0, 1)
    entropy = SeededEntropy(10_000 * seed + round(100 * epsilon) + crc32(name.encode()) % 100_000)
    spec = next(shifted_grid(ShiftedGrid(epsilon), FEATURES, n))
    model = fit(ShiftedGrid(epsilon), collect(spec, points, entropy, entropy.words(n)))
    index, expected = adjusted_rand_index(model.assign(points), labels), model.expected_agreement
    return {
        "half": half, "set": name, "seed": seed, "epsilon": epsilon, "n": n, "true_clusters": int(labels.max()) + 1,
        "clusters": model.n_clusters, "index": index if labels.any() or model.n_clusters == 1 else 0.0,
        "verdict": model.verdict.value, "expected": expected and expected.value,
        "undivided": model.diagnostics["undivided"], "clearly_undivided": model.diagnostics["clearly_undivided"],
    }  # fmt: skip


def report(rows: Sequence[Row]) -> Iterable[str]:
    """Return the figures of each half. One cluster that is right has no index."""
    for half in HALVES:
        own = [row for row in rows if row["half"] == half and (row["true_clusters"], row["clusters"]) != (1, 1)]
        if not own:
            continue
        verdicts = describe_verdicts("index", [row["index"] for row in own], [row["verdict"] for row in own])
        yield f"{half}, {len(own)} runs: {verdicts}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the runs that are not in the file, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args(arguments)
    rows = read_runs(options.runs)
    done = {(row["set"], row["seed"]) for row in rows}
    missing = (
        measure(half, *run)
        for half in HALVES
        for run in choose_runs(half, options.seeds)
        if (run[0], run[2]) not in done
    )
    rows += append_runs(options.runs, missing)
    print("\n".join(report(rows)))


if __name__ == "__main__":
    main()
