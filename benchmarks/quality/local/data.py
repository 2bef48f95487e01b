"""Data sets of the local benchmark: generated shapes, and files `DIR/*.npz`, which are only read.

A file holds `X` (n × d, in its own units), `y` (1 to k; 0 is a noise point, -1 is no label) and `meta` (JSON: `kind`,
`k`). Bounds are the range of the original, widened by 2 % on each side. In production the analyst declares public
bounds.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from sklearn.datasets import make_blobs, make_circles, make_moons

from benchmarks.quality.data import (
    CLUSTERS_UNLABELLED,
    JITTER,
    MARGIN,
    DataSet,
    Labels,
    Points,
    Sample,
    expanded,
    read_file,
)

SHAPES: Mapping[str, int] = {"moons": 2, "aniso": 3, "circles": 2}  # number of clusters by name
SHAPE_SIZES = (15_000, 150_000, 1_000_000)
RESAMPLED_SIZE = 150_000
SMALL = 100_000  # a file with fewer points is resampled
MAX_FEATURES = 64

# The ten two-feature sets of the quoted mean.
TEN = (
    "moons", "circles", "sipu_s1", "sipu_s3", "sipu_unbalance", "sipu_aggregation", "other_chameleon_t4_8k",
    "fcps_target", "wut_smile", "wut_mk2",
)  # fmt: skip
QUICK = ("sipu_s1", "sipu_aggregation", "wut_smile")
_GROUPS = {"2-D shapes": "plane", "3-D shapes": "space", "geo": "geo", "tabular": "tabular"}  # groups by kind of file

_SHEAR = np.array([[0.6, -0.6], [-0.4, 0.8]])
_BOUNDS_POINTS, _BOUNDS_SEED = 200_000, 99_999

_read = lru_cache(maxsize=2)(read_file)


def draw_shape(name: str, n: int, seed: int) -> tuple[Points, Labels]:
    """Draw a shape in its own units; labels start at 0."""
    if name == "circles":
        points, labels = make_circles(n, factor=0.5, noise=0.05, random_state=seed)
    elif name == "moons":
        points, labels = make_moons(n, noise=0.05, random_state=seed)
    elif name == "aniso":
        _, _, centres = make_blobs(10, centers=3, random_state=170, return_centers=True)
        points, labels = make_blobs(n, centers=centres, random_state=seed)
        points = points @ _SHEAR
    else:
        raise ValueError(f"unknown shape {name}; there are {', '.join(SHAPES)}")
    return points, labels


def widened(points: Points) -> tuple[Points, Points]:
    """Return lower and upper bounds: the range, widened by 2 % on each side; a constant feature by one."""
    lower, upper = points.min(axis=0), points.max(axis=0)
    margin = np.where(upper > lower, MARGIN * (upper - lower), 1.0)
    return lower - margin, upper + margin


@lru_cache(maxsize=len(SHAPES))
def shape_bounds(name: str) -> tuple[Points, Points]:
    """Return the bounds of a shape: the widened range of a separate sample."""
    return widened(draw_shape(name, _BOUNDS_POINTS, _BOUNDS_SEED)[0])


@lru_cache(maxsize=2)
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


def find(folder: Path | None, names: Sequence[str], sizes: Sequence[int]) -> list[DataSet]:
    """Return the data sets of these names: shapes at every size, files at their one size.

    Parameters
    ----------
    folder : Path, optional
        Folder of files; without it there are only the shapes.
    names : sequence of str
        Names, and groups: `shapes`, `ten`, `quick`, `plane`, `space`, `geo`, `tabular`, `all`. `ten` takes its shapes
        at 150,000 points.

    Raises
    ------
    ValueError
        A name that is no set.
    """
    paths = sorted(folder.glob("*.npz")) if folder is not None else []
    files = {path.stem: described for path in paths if (described := _described(path))}
    groups = {"shapes": list(SHAPES), "ten": list(TEN), "quick": [*SHAPES, *(name for name in QUICK if name in files)]}
    groups |= {group: [name for name, (own, _) in files.items() if own == group] for group in _GROUPS.values()}
    groups["all"] = [*SHAPES, *files]
    found: dict[tuple[str, int], DataSet] = {}
    for word in names:
        for name in expanded([word], groups):
            shape_sizes = (RESAMPLED_SIZE,) if word == "ten" else sizes
            sets = [DataSet(name, n, SHAPES[name]) for n in shape_sizes] if name in SHAPES else [files[name][1]]
            found |= {(data.name, data.n): data for data in sets}
    return list(found.values())


def _described(path: Path) -> tuple[str, DataSet] | None:
    """Return group and data set of a file, or None if its kind is not benchmarked."""
    with np.load(path) as file:
        meta = json.loads(str(file["meta"]))
        n, d = file["X"].shape
        labelled = bool((file["y"] > 0).any())
    if meta["kind"] not in _GROUPS or d > MAX_FEATURES:
        return None
    clusters = int(meta["k"]) if labelled else CLUSTERS_UNLABELLED
    size = RESAMPLED_SIZE if n < SMALL else n
    return _GROUPS[meta["kind"]], DataSet(path.stem, size, clusters, d, path, n < SMALL, labelled)


def _scaled(points: Points, lower: Points, upper: Points) -> Points:
    return np.asarray(((points - lower) / (upper - lower)).clip(0.0, 1.0), dtype=np.float64)
