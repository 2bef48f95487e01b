"""The data sets of the central benchmark: normal blobs, sets of scikit-learn, and files `DIR/*.npz`, all as they are.

In the central model the number of records decides how well anything can do, so nothing is
resampled. The box is the range of the set widened by a margin a side, or by more where that is
said; in production bounds are public and declared, and a benchmark has nobody to declare them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_iris, load_wine

from benchmarks.quality.data import CLUSTERS_UNLABELLED

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

MARGIN = 0.02  # of the range, a side
BLOBS_SEED = 7  # the blobs are one set, as files are


@dataclass(frozen=True)
class Blobs:
    """Round normal clusters whose means are normal too.

    Attributes
    ----------
    n, d, clusters : int
    spread : float
        Standard deviation of a cluster in each feature, that of the means being 1.
    box : float
        How many times wider than the range the box is; 1 is the range and its margin.
    """

    n: int
    d: int
    clusters: int
    spread: float
    box: float = 1.0


@dataclass(frozen=True)
class Real:
    """A set that somebody measured, or a published benchmark's.

    Attributes
    ----------
    read : callable or str
        Gives points and labels; or the name of a file, without its ending.
    clusters : int
    labelled : bool
        Whether its classes are scored against; else the non-private k-means is.
    components : int, optional
        Points are their first principal components, of so many.
    """

    read: Callable[..., tuple[Points, Labels]] | str
    clusters: int
    labelled: bool = True
    components: int | None = None


SETS: Mapping[str, Blobs | Real] = {
    "blobs_2_10k": Blobs(10_000, 2, 15, 0.2),
    "blobs_2_100k": Blobs(100_000, 2, 15, 0.2),
    "blobs_2_100k_wide": Blobs(100_000, 2, 15, 0.2, box=4.0),
    "blobs_4_100k": Blobs(100_000, 4, 8, 0.3),
    "blobs_8_100k": Blobs(100_000, 8, 8, 0.45),
    "blobs_16_100k": Blobs(100_000, 16, 8, 0.64),
    "blobs_16_20k_k26": Blobs(20_000, 16, 26, 0.85),  # that overlap: as many classes as letters
    "iris": Real(load_iris, 3),
    "wine": Real(load_wine, 3),
    "digits": Real(load_digits, 10),
    "s1": Real("sipu_s1", 15),
    "s3": Real("sipu_s3", 15),
    "a1": Real("sipu_a1", 20),
    "a3": Real("sipu_a3", 50),
    "unbalance": Real("sipu_unbalance", 8),
    "birch1": Real("sipu_birch1", 100),
    "check_ins": Real("geo_gowalla_nyc", CLUSTERS_UNLABELLED, labelled=False),
    "uber": Real("geo_uber_nyc_apr14", CLUSTERS_UNLABELLED, labelled=False),
    "xclara": Real("shape_xclara", 3, labelled=False),
    "credit": Real("tab_credit_default", CLUSTERS_UNLABELLED, labelled=False),
    "statlog": Real("uci_statlog", 7),
    "mnist_pca8": Real("hd_mnist_t10k_first5000", 10, components=8),
    "mnist_pca16": Real("hd_mnist_t10k_first5000", 10, components=16),
}
GROUPS: Mapping[str, Sequence[str]] = {
    "blobs": [name for name, kind in SETS.items() if isinstance(kind, Blobs)],
    "real": [name for name, kind in SETS.items() if isinstance(kind, Real)],
    "quick": ["blobs_2_10k", "iris"],
    "all": list(SETS),
}


@dataclass(frozen=True, eq=False)
class CentralSet:
    """Points in [0, 1]^d, labels (0 and below: none; none at all where no class is a cluster), and K."""

    name: str
    points: Points
    labels: Labels | None
    clusters: int


def wanted(folder: Path | None, words: Sequence[str]) -> list[str]:
    """Names of sets that are there, of names and groups.

    Raises
    ------
    ValueError
        A name that is no set, or whose file is not there.
    """
    names = list(dict.fromkeys(name for word in words for name in GROUPS.get(word, [word])))
    for name in names:
        if name not in SETS:
            raise ValueError(f"no set is called {name}; there are {', '.join(SETS)}, and groups {', '.join(GROUPS)}")
    there = [name for name in names if _is_there(name, folder)]
    gone = [name for name in words if name in SETS and name not in there]
    if gone:
        raise ValueError(f"the file of {gone[0]} is not there: --data names the folder of files")
    return there


@lru_cache(maxsize=2)
def load(name: str, folder: Path | None) -> CentralSet:
    """A set, scaled to its box."""
    kind = SETS[name]
    if isinstance(kind, Blobs):
        points, labels = _blobs(kind)
        return CentralSet(name, _boxed(points, kind.box), labels, kind.clusters)
    points, labels = _read(kind, folder)
    if kind.components is not None:
        centred = points - points.mean(axis=0)
        _, directions = np.linalg.eigh(centred.T @ centred)  # by ascending variance
        points = centred @ directions[:, ::-1][:, : kind.components]
    return CentralSet(name, _boxed(points, 1.0), labels if kind.labelled else None, kind.clusters)


def _blobs(kind: Blobs) -> tuple[Points, Labels]:
    rng = np.random.default_rng(BLOBS_SEED)
    means = rng.normal(0.0, 1.0, (kind.clusters, kind.d))
    labels = rng.integers(0, kind.clusters, kind.n)
    return means[labels] + rng.normal(0.0, kind.spread, (kind.n, kind.d)), labels + 1


def _read(kind: Real, folder: Path | None) -> tuple[Points, Labels]:
    if not isinstance(kind.read, str):
        points, labels = kind.read(return_X_y=True)
        return np.asarray(points, dtype=np.float64), np.asarray(labels, dtype=np.int64) + 1
    with np.load((folder or Path()) / f"{kind.read}.npz") as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def _boxed(points: Points, box: float) -> Points:
    lower, upper = points.min(axis=0), points.max(axis=0)
    width = np.where(upper > lower, upper - lower, 1.0)
    scaled = (points - (lower + upper) / 2) / (width * (1 + 2 * MARGIN) * box) + 0.5
    return np.asarray(np.clip(scaled, 0.0, 1.0), dtype=np.float64)


def _is_there(name: str, folder: Path | None) -> bool:
    kind = SETS[name]
    if isinstance(kind, Blobs) or not isinstance(kind.read, str):
        return True
    return folder is not None and (folder / f"{kind.read}.npz").exists()
