"""What a second round that zooms into a dense core, or warps the axes, brings `shifted_grid` (decision 0016).

    python -m benchmarks.quality.zooming --data DIR --out FILE

A share of the devices, by their draws, answers a round over the box as it is. Its density is
published and gives each axis a monotone piecewise linear warp; the others answer a second
shifted grid over warped coordinates, and its density is cut there. *Zoom*: most of the lattice
goes to the narrowest interval that holds most people, the rest to what is outside. *Warp*: the
lattice follows the marginal distribution. *If concentrated*: only where half the people lie in
a narrow interval; elsewhere both rounds have one lattice, and their tallies are added. Against
them stands a single round over a finer lattice under a shorter prior, which needs nothing new.
Every device answers once, at the full epsilon. Rows that are in FILE are not made again.
"""

import argparse
import csv
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from benchmarks.quality.data import Labels, Points, draw, find
from clustering.excess_mass import bumps, regions
from clustering.metrics import accuracy, adjusted_rand_index
from clustering.phase_search import PublicWords
from clustering.plan import Collected
from clustering.seeded_entropy import SeededEntropy
from clustering.shifted_fit import landscape
from clustering.simulate import collect
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.sizing import planned_rounds
from sfumato.specs import Draw, Feature, ShiftedGrid, ShiftedGridEncoding

N = 150_000
EPSILONS = (0.5, 1.0, 2.0, 4.0)
CORNER = "corner_"  # before a set's name: in a box almost seven times too wide, with people all over it
CITY, CORE = "city", "core_and_far"
SETS = (CORE, CORNER + "moons", CORNER + "sipu_s1", CORNER + "sipu_aggregation", CITY, "geo_uber_nyc_apr14")

_CITY_FILE, _CITY_BOX = "geo_uber_nyc_apr14", ((-74.05, 40.58), (-73.75, 40.92))  # longitude, latitude
_CITY_JITTER, _CITY_CLUSTERS = 0.002, 5
_CORNER_PLACE, _CORNER_WIDTH, _BACKGROUND = (0.3, 0.55), 0.15, 0.1

_CORE_CENTRES = ((0.4, 0.45), (0.46, 0.45), (0.4, 0.51), (0.46, 0.51), (0.15, 0.8), (0.8, 0.2), (0.8, 0.8))
_CORE_SPREADS = (0.012,) * 4 + (0.05,) * 3
_CORE_SHARES = (_BACKGROUND,) + (0.15,) * 4 + (0.1,) * 3

_HELD, _GIVEN = 0.9, 0.75  # zoom: share of people in the interval, and of the lattice it gets
_NEAR_ENOUGH = 0.6  # an interval as wide is not zoomed into
_FOLLOWED = 0.7  # warp: how much of it is the marginal distribution; the rest is the axis as it is
_NARROW = 0.2  # concentrated: half the people lie in less of an axis

_FINE_CELLS, _FINE_LENGTH_SCALE = 32, 0.02
_REFERENCE_CELLS, _REFERENCE_BLUR = 256, 1.5
_EVEN = 1e-3  # of an even density, mixed in before its logarithm is taken
_STARTS = 3  # of k-means

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """How devices are asked.

    Attributes
    ----------
    kind : {'once', 'zoom', 'warp'}
    share : float
        Of devices in the first of two rounds.
    gated : bool
        The second lattice differs only where people are concentrated.
    cells, length_scale
        Of `ShiftedGrid`.
    """

    kind: Literal["once", "zoom", "warp"] = "once"
    share: float = 0.0
    gated: bool = False
    cells: int | None = None
    length_scale: float = 0.06


_SHARES = (0.1, 0.2, 0.3)

WAYS: Mapping[str, Way] = {
    "once": Way(),
    "once fine": Way(cells=_FINE_CELLS, length_scale=_FINE_LENGTH_SCALE),
    **{f"zoom {share}": Way("zoom", share) for share in _SHARES},
    **{f"warp {share}": Way("warp", share) for share in _SHARES},
    "warp 0.2 if concentrated": Way("warp", 0.2, gated=True),
}


@dataclass(frozen=True)
class Warp:
    """A monotone piecewise linear map of [0, 1] onto itself, by its public knots."""

    places: Grid
    warped: Grid

    def apply(self, x: Grid) -> Grid:
        return np.asarray(np.interp(x, self.places, self.warped), dtype=np.float64)

    def edges(self, n_cells: int) -> Grid:
        """Where the even cells of the warped axis begin and end."""
        return np.asarray(np.interp(np.linspace(0, 1, n_cells + 1), self.warped, self.places), dtype=np.float64)


STRAIGHT = Warp(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


@dataclass(frozen=True)
class Outcome:
    """A density over a grid of uneven lines, and the label of each of its cells."""

    edges: tuple[Grid, ...]
    density: Grid
    labels: Labels

    def cells_of(self, points: Points) -> tuple[Labels, ...]:
        return tuple(
            np.clip(np.searchsorted(lines, points[:, axis], side="right") - 1, 0, len(lines) - 2).astype(np.int64)
            for axis, lines in enumerate(self.edges)
        )

    def log_likelihood(self, points: Points) -> float:
        """Mean log density at the points, in nats above an even one."""
        first, second = (np.diff(lines) for lines in self.edges)
        per_area = self.density / np.outer(first, second)
        return float(np.log((1 - _EVEN) * per_area[self.cells_of(points)] + _EVEN).mean())

    def centres(self, clusters: int) -> Points:
        """Of k-means over the density."""
        middles = [(lines[1:] + lines[:-1]) / 2 for lines in self.edges]
        places = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1).reshape(-1, 2)
        return weighted_kmeans(places, self.density.ravel(), clusters, PublicWords(1), _STARTS).centres


def narrowest(marginal: Grid, share: float) -> tuple[float, float]:
    """The shortest run of cells that holds a share of all people, as an interval of [0, 1]."""
    below = np.concatenate([[0.0], np.cumsum(marginal)]) / marginal.sum()
    n_cells = len(marginal)
    runs = [(int(np.searchsorted(below, below[i] + share - 1e-12)), i) for i in range(n_cells)]
    stop, begin = min((run for run in runs if run[0] <= n_cells), key=lambda run: run[0] - run[1])
    return begin / n_cells, stop / n_cells


def zoomed(marginal: Grid) -> Warp:
    lo, hi = narrowest(marginal, _HELD)
    if hi - lo >= _NEAR_ENOUGH:
        return STRAIGHT
    before = (1 - _GIVEN) * lo / (1 - (hi - lo))
    return _increasing(np.array([0, lo, hi, 1]), np.array([0, before, before + _GIVEN, 1]))


def _increasing(places: Grid, warped: Grid) -> Warp:
    """Without the knots that repeat another (an interval may begin or end with the axis)."""
    kept = np.concatenate([[True], (np.diff(places) > 0) & (np.diff(warped) > 0)])
    kept[-1] = True
    return Warp(places[kept], warped[kept])


def followed(marginal: Grid) -> Warp:
    places = np.linspace(0, 1, len(marginal) + 1)
    below = np.concatenate([[0.0], np.cumsum(marginal)]) / marginal.sum()
    return _increasing(places, (1 - _FOLLOWED) * places + _FOLLOWED * below)


def warps(way: Way, density: Grid) -> tuple[Warp, Warp]:
    """Of each axis, by the first round's density; nothing else is looked at."""
    first, second = density.sum(axis=1), density.sum(axis=0)
    widths = [hi - lo for lo, hi in (narrowest(first, 0.5), narrowest(second, 0.5))]
    if way.gated and min(widths) >= _NARROW:
        return STRAIGHT, STRAIGHT
    bend = zoomed if way.kind == "zoom" else followed
    return bend(first), bend(second)


def ask(way: Way, points: Points, epsilon: float, clusters: int | None, seed: int) -> Outcome:
    """Put the rounds of a way to devices; two features."""
    params = ShiftedGrid(epsilon=epsilon, clusters=clusters, cells=way.cells, length_scale=way.length_scale)
    (only,) = planned_rounds(params, 2, len(points))
    spec = only.spec((Feature("x1", 0.0, 1.0), Feature("x2", 0.0, 1.0)))
    encoding = spec.encoding
    assert isinstance(encoding, ShiftedGridEncoding)
    entropy = SeededEntropy(seed)
    draws = entropy.words(len(points))
    axes, first = (STRAIGHT, STRAIGHT), None
    if way.kind != "once":
        first = collect(replace(spec, draw=Draw.between(0, way.share)), points, entropy, draws)
        axes = warps(way, landscape(params, encoding, first).density)
        spec = replace(spec, draw=Draw.between(way.share, 1))
    moved = np.stack([axis.apply(points[:, i]) for i, axis in enumerate(axes)], axis=1)
    last = collect(spec, moved, entropy, draws)
    if first is not None and all(axis is STRAIGHT for axis in axes):
        last = Collected(spec, first.tally + last.tally)
    seen = landscape(params, encoding, last)
    labels = regions(seen.density, seen.kept()).labels
    return Outcome(tuple(axis.edges(encoding.fine_cells) for axis in axes), seen.density, labels)


@dataclass(frozen=True, eq=False)
class Case:
    """Points in [0, 1]², what they are scored against (0: not scored), K, and the loss of k-means on the points."""

    points: Points
    truth: Labels
    clusters: int
    loss: float


def load(name: str, folder: Path | None, n: int, seed: int) -> Case:
    """A set; where nobody labelled it, the regions of most excess mass on exact, slightly blurred counts."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    points, truth, clusters = _points(name, folder, n, seed, rng)
    lines = np.linspace(0, 1, _REFERENCE_CELLS + 1)
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=_REFERENCE_CELLS, range=[[0, 1], [0, 1]])
    openly = Outcome((lines, lines), counts / counts.sum(), np.zeros(counts.shape, dtype=np.int64))
    if truth is None:
        blurred = gaussian_filter(counts / counts.sum(), _REFERENCE_BLUR, mode="nearest")
        truth = regions(blurred, bumps(blurred)[:clusters]).labels[openly.cells_of(points)] + 1
    return Case(points, truth, clusters, loss_of(points, openly.centres(clusters)))


def loss_of(points: Points, centres: Points) -> float:
    """Mean squared distance to the nearest centre."""
    squares = np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres])
    return float(squares.min(axis=0).mean())


def _points(
    name: str, folder: Path | None, n: int, seed: int, rng: np.random.Generator
) -> tuple[Points, Labels | None, int]:
    if name == CORE:
        truth = rng.choice(len(_CORE_SHARES), n, p=_CORE_SHARES).astype(np.int64)
        spread = rng.normal(0, 1, (n, 2)) * np.array(_CORE_SPREADS)[truth - 1, None]
        points = np.where(truth[:, None] == 0, rng.random((n, 2)), np.array(_CORE_CENTRES)[truth - 1] + spread)
        return points.clip(0, 1), truth, len(_CORE_CENTRES)
    if name == CITY:
        if folder is None:
            raise ValueError("--data names the folder of files")
        with np.load(folder / f"{_CITY_FILE}.npz") as file:
            original = file["X"].astype(np.float64)
        lower, upper = np.array(_CITY_BOX)
        inside = (original[((original >= lower) & (original <= upper)).all(axis=1)] - lower) / (upper - lower)
        drawn = inside[rng.integers(0, len(inside), n)] + rng.normal(0, _CITY_JITTER, (n, 2))
        return drawn.clip(0, 1), None, _CITY_CLUSTERS
    (data,) = find(folder, [name.removeprefix(CORNER)], (n,))
    if data.n_features != 2:
        raise ValueError(f"{name} has {data.n_features} features; two are zoomed into")
    sample = draw(data, seed)
    if not name.startswith(CORNER):
        return sample.points, sample.labels if data.labelled else None, data.clusters
    anywhere = rng.random(data.n) < _BACKGROUND
    points = np.array(_CORNER_PLACE) + _CORNER_WIDTH * sample.points
    points[anywhere] = rng.random((int(anywhere.sum()), 2))
    return points, np.where(anywhere, 0, sample.labels), data.clusters


FIELDS = ("set", "n", "seed", "epsilon", "way", "k", "ari", "accuracy", "log_likelihood", "nicv", "n_clusters")


def rows(options: argparse.Namespace, made: set[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Rows that are not made yet, seed by seed, as texts in the order of `FIELDS`."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.sets.split(","):
            case = load(name, options.data, options.n, seed)
            scored = case.truth > 0
            for epsilon in options.epsilons:
                for way in options.ways.split(","):
                    for k in options.k.split(","):
                        key = (name, str(options.n), str(seed), str(epsilon), way, k)
                        if key in made:
                            continue
                        found = ask(WAYS[way], case.points, epsilon, case.clusters if k == "given" else None, seed)
                        pair = (case.truth[scored], found.labels[found.cells_of(case.points)][scored])
                        measures = (
                            adjusted_rand_index(*pair),
                            accuracy(*pair),
                            found.log_likelihood(case.points),
                            loss_of(case.points, found.centres(case.clusters)) / case.loss,
                        )
                        yield (*key, *(f"{value:.4f}" for value in measures), str(found.labels.max() + 1))


def table(found: Sequence[Sequence[str]], measure: str, k: str) -> str:
    """Means over seeds: a line for each set, a column for each way, epsilons side by side."""
    place = FIELDS.index(measure)
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in found:
        if row[5] == k:
            groups.setdefault((f"{row[0]} {int(row[1]):,}", row[4], row[3]), []).append(float(row[place]))
    ways = [way for way in WAYS if any(key[1] == way for key in groups)]
    lines = [f"| {measure}, K {k} | seeds | " + " | ".join(ways) + " |", "|---|" + "---:|" * (len(ways) + 1)]
    for name in dict.fromkeys(key[0] for key in groups):
        cells = [
            " / ".join(f"{np.mean(groups[name, way, str(e)]):.2f}" for e in EPSILONS if (name, way, str(e)) in groups)
            for way in ways
        ]
        seeds = max(len(values) for key, values in groups.items() if key[0] == name)
        lines.append(f"| {name} | {seeds} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _read(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing in the file, and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="files of sets; without it, shapes and the core alone")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="a CSV file, which is added to")
    parser.add_argument("--sets", default=",".join(SETS), metavar="A,B", help="names; or corner_ and a name")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="A,B", help="of: " + "; ".join(WAYS))
    parser.add_argument("--k", default="given,auto", help="given, auto or both")
    parser.add_argument("--epsilons", type=_numbers, default=EPSILONS, metavar="A,B")
    parser.add_argument("--n", type=int, default=N, help="points of what is drawn")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args(arguments)
    before = _read(options.out) if options.out.exists() else []
    with options.out.open("a", encoding="utf-8", newline="", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        if not before:
            writer.writerow(FIELDS)
        for row in rows(options, {tuple(row[:6]) for row in before}):
            writer.writerow(row)
    found = _read(options.out)[1:]
    for k in ("given", "auto"):
        for measure in ("ari", "accuracy", "log_likelihood", "nicv"):
            sys.stdout.write(table(found, measure, k) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
