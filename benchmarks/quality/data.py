"""The data sets of the benchmark: generated shapes, and files `DIR/*.npz` that are read and never copied.

A file holds `X` (n × d, in its own units), `y` (1..k; 0 is a noise point, -1 is no label) and
`meta` (JSON: `kind`, `k`). Bounds are the range of the original, widened by 2 % a side; in
production bounds are public and declared, and a benchmark has nobody to declare them.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_blobs, make_circles, make_moons

SHAPES: Mapping[str, int] = {"moons": 2, "aniso": 3, "circles": 2}  # and their clusters
SHAPE_SIZES = (15_000, 150_000, 1_000_000)
RESAMPLED_SIZE = 150_000
SMALL = 100_000  # fewer points than these are resampled
JITTER = 0.005  # standard deviation of what is added to a resampled point, of a feature's range
MARGIN = 0.02
CLUSTERS_UNLABELLED = 5  # K given, where nobody knows it
MAX_FEATURES = 64

# The ten two-feature sets whose mean is quoted.
TEN = (
    "moons",
    "circles",
    "sipu_s1",
    "sipu_s3",
    "sipu_unbalance",
    "sipu_aggregation",
    "other_chameleon_t4_8k",
    "fcps_target",
    "wut_smile",
    "wut_mk2",
)
QUICK = ("sipu_s1", "sipu_aggregation", "wut_smile")
_KINDS = {"2-D shapes": "plane", "3-D shapes": "space", "geo": "geo", "tabular": "tabular"}

_SHEAR = np.array([[0.6, -0.6], [-0.4, 0.8]])
_BOUNDS_POINTS, _BOUNDS_SEED = 200_000, 99_999

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """One set at one size.

    Attributes
    ----------
    name : str
        A shape's, or a file's without its ending.
    n : int
        Points of a sample: one device each.
    clusters : int
        K, where it is given.
    n_features : int
    path : Path or None
        None is a shape.
    resampled : bool
        Drawn with replacement from a smaller set, with jitter; marked `*` in tables.
    labelled : bool
        Where not, runs are scored against the same method on exact counts; marked `†`.
    """

    name: str
    n: int
    clusters: int
    n_features: int = 2
    path: Path | None = None
    resampled: bool = False
    labelled: bool = True

    @property
    def mark(self) -> str:
        """What stands behind its name in tables."""
        return "*" * self.resampled + "†" * (not self.labelled)


@dataclass(frozen=True, eq=False)
class Sample:
    """Points in [0, 1]^d, and their labels; those with label 0 or below are not scored."""

    points: Points
    labels: Labels


def draw_shape(name: str, n: int, seed: int) -> tuple[Points, Labels]:
    """Draw a shape in its own units; labels from 0."""
    if name == "circles":
        points, labels = make_circles(n, factor=0.5, noise=0.05, random_state=seed)
    elif name == "moons":
        points, labels = make_moons(n, noise=0.05, random_state=seed)
    elif name == "aniso":
        _, _, centres = make_blobs(10, centers=3, random_state=170, return_centers=True)
        points, labels = make_blobs(n, centers=centres, random_state=seed)
        points = points @ _SHEAR
    else:
        raise ValueError(f"unknown shape; there are {', '.join(SHAPES)}")
    return points, labels


def widened(points: Points) -> tuple[Points, Points]:
    """Lower and upper bounds: the range, widened by 2 % a side; a constant feature by one."""
    lower, upper = points.min(axis=0), points.max(axis=0)
    margin = np.where(upper > lower, MARGIN * (upper - lower), 1.0)
    return lower - margin, upper + margin


@lru_cache(maxsize=len(SHAPES))
def shape_bounds(name: str) -> tuple[Points, Points]:
    """A shape's bounds: the widened range of another draw."""
    return widened(draw_shape(name, _BOUNDS_POINTS, _BOUNDS_SEED)[0])


def draw(data: DataSet, seed: int) -> Sample:
    """Draw a sample; equal seeds give equal samples."""
    if data.path is None:
        points, labels = draw_shape(data.name, data.n, seed)
        lower, upper = shape_bounds(data.name)
        return Sample(_scaled(points, lower, upper), labels.astype(np.int64) + 1)
    original, labels = _read(data.path)
    lower, upper = widened(original)
    if not data.resampled:
        return Sample(_scaled(original, lower, upper), labels)
    rng = np.random.default_rng([zlib.crc32(data.name.encode()), seed])
    chosen = rng.integers(0, len(original), data.n)
    jitter = rng.normal(0.0, JITTER, (data.n, original.shape[1])) * np.ptp(original, axis=0)
    return Sample(_scaled(original[chosen] + jitter, lower, upper), labels[chosen])


def find(folder: Path | None, wanted: Sequence[str], sizes: Sequence[int]) -> list[DataSet]:
    """The sets of these names, shapes at every size, files at their one size.

    Parameters
    ----------
    folder : Path, optional
        Where files lie; None knows the shapes alone.
    wanted : sequence of str
        Names, and groups: `shapes`, `ten`, `quick`, `plane`, `space`, `geo`, `tabular`, `all`.
        A shape that is named by `ten` alone is taken at 150,000 points.

    Raises
    ------
    ValueError
        A name that is no set.
    """
    files = _described(folder)
    found: dict[tuple[str, int], DataSet] = {}
    for word in wanted:
        for name in _expanded(word, files):
            if name in SHAPES:
                for n in (RESAMPLED_SIZE,) if word == "ten" else sizes:
                    found[name, n] = DataSet(name, n, SHAPES[name])
            elif name in files:
                found[name, files[name][1].n] = files[name][1]
            else:
                raise ValueError(f"no set is called {name}; --data names the folder of files")
    return list(found.values())


def _expanded(word: str, files: Mapping[str, tuple[str, DataSet]]) -> list[str]:
    if word == "all":
        return [*SHAPES, *files]
    groups = {"shapes": list(SHAPES), "ten": list(TEN), "quick": list(QUICK)}
    groups |= {group: [name for name, (kind, _) in files.items() if kind == group] for group in _KINDS.values()}
    return groups.get(word, [word])


def _described(folder: Path | None) -> dict[str, tuple[str, DataSet]]:
    """Group and set of every file of a kind that is benchmarked, by name."""
    found: dict[str, tuple[str, DataSet]] = {}
    for path in sorted(folder.glob("*.npz")) if folder is not None else []:
        with np.load(path) as file:
            meta = json.loads(str(file["meta"]))
            n, d = file["X"].shape
            labelled = bool((file["y"] > 0).any())
        if meta["kind"] not in _KINDS or d > MAX_FEATURES:
            continue
        small = n < SMALL
        found[path.stem] = (
            _KINDS[meta["kind"]],
            DataSet(
                name=path.stem,
                n=RESAMPLED_SIZE if small else n,
                clusters=int(meta["k"]) if labelled else CLUSTERS_UNLABELLED,
                n_features=d,
                path=path,
                resampled=small,
                labelled=labelled,
            ),
        )
    return found


@lru_cache(maxsize=2)
def _read(path: Path) -> tuple[Points, Labels]:
    with np.load(path) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def _scaled(points: Points, lower: Points, upper: Points) -> Points:
    return np.asarray(((points - lower) / (upper - lower)).clip(0.0, 1.0), dtype=np.float64)
