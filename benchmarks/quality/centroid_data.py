"""The data sets of the centroids' benchmark: blobs whose means are known, sets of scikit-learn, and files `DIR/*.npz`.

Files are read and never copied. A real set that holds fewer points than are asked for is
resampled with jitter and marked `*`; a larger one is sampled without replacement.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_iris, load_wine

from benchmarks.quality.data import CLUSTERS_UNLABELLED, JITTER, MARGIN

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

BLOB_CLUSTERS = 4
BLOB_SPREAD = 0.06  # s, a share of a feature's range
BLOB_MEANS = (0.15, 0.85)
BLOB_GAP = {True: 0.35, False: 0.45}  # least distance of two means, in two features and in more
BLOB_FEATURES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Source:
    """Where a real set comes from, and what is made of it.

    Attributes
    ----------
    read : callable or str
        Gives points and labels; or the name of a file, without its ending.
    clusters : int
        K. A set whose classes are no clusters has five, and is scored against k-means.
    labelled : bool
        Whether its classes are what is scored against.
    components : int, optional
        Points are their first principal components, of so many; None leaves features as they are.
    first : int, optional
        Only so many features are taken.
    standardised : bool
        Features have one variance before components are taken.
    clipped : float
        Share of points that lies beyond each bound and is moved to it; 0: bounds are the range
        widened by 2 % a side. Long tails would leave the rest in a corner of the box.
    """

    read: Callable[..., tuple[Points, Labels]] | str
    clusters: int
    labelled: bool = True
    components: int | None = None
    first: int | None = None
    standardised: bool = False
    clipped: float = 0.0


def _of_sklearn(load: Callable[..., tuple[Points, Labels]]) -> Callable[[], tuple[Points, Labels]]:
    def read() -> tuple[Points, Labels]:
        points, labels = load(return_X_y=True)
        return np.asarray(points, dtype=np.float64), np.asarray(labels, dtype=np.int64) + 1

    return read


SOURCES: Mapping[str, Source] = {
    "iris": Source(_of_sklearn(load_iris), 3),
    "wine": Source(_of_sklearn(load_wine), 3),
    "digits_pca8": Source(_of_sklearn(load_digits), 10, components=8),
    "mnist_pca8": Source("hd_mnist_t10k_first5000", 10, components=8),
    "news20_svd8": Source("hd_20news_bydate_train_svd100", 20, first=8, clipped=0.005),
    "credit_pca4": Source(
        "tab_credit_default", CLUSTERS_UNLABELLED, labelled=False, components=4, standardised=True, clipped=0.01
    ),
    "credit": Source("tab_credit_default", CLUSTERS_UNLABELLED, labelled=False, clipped=0.01),
    "statlog": Source("uci_statlog", 7, clipped=0.005),
    "mall": Source("tab_mall_customers", CLUSTERS_UNLABELLED, labelled=False),
    "taxi_od": Source("geo_nyc_taxi_od", CLUSTERS_UNLABELLED, labelled=False, clipped=0.005),
    "earthquakes": Source("geo_usgs_earthquakes", CLUSTERS_UNLABELLED, labelled=False),
    "hepta": Source("fcps_hepta", 7),
    "xclara": Source("shape_xclara", 3, labelled=False),
    "s1": Source("sipu_s1", 15),
    "s3": Source("sipu_s3", 15),
    "a1": Source("sipu_a1", 20),
    "unbalance": Source("sipu_unbalance", 8),
    "uber": Source("geo_uber_nyc_apr14", CLUSTERS_UNLABELLED, labelled=False, clipped=0.005),
}
BLOBS = tuple(f"blobs_{d}" for d in BLOB_FEATURES)
QUICK = ("blobs_2", "blobs_4", "iris")
NO_FILES = (*BLOBS, "iris", "wine", "digits_pca8")


@dataclass(frozen=True)
class CentroidSet:
    """One set at one size.

    Attributes
    ----------
    name : str
    n : int
        Points of a sample: one device each.
    clusters : int
        K, which every method is told.
    n_features : int
    labelled : bool
        Where not, labels are those of the non-private k-means; marked `†`.
    resampled : bool
        Drawn with replacement from fewer points, with jitter; marked `*`.
    folder : Path, optional
        Where files lie.
    """

    name: str
    n: int
    clusters: int
    n_features: int
    labelled: bool = True
    resampled: bool = False
    folder: Path | None = None

    @property
    def mark(self) -> str:
        """What stands behind its name in tables."""
        return "*" * self.resampled + "†" * (not self.labelled)

    @property
    def spread(self) -> float | None:
        """s, where clusters are round and of one known spread."""
        return BLOB_SPREAD if self.name in BLOBS else None


@dataclass(frozen=True, eq=False)
class CentroidSample:
    """Points in [0, 1]^d, their labels (0 and below: none), and the true means where they are known."""

    points: Points
    labels: Labels
    centres: Points | None


def find(folder: Path | None, wanted: Sequence[str], sizes: Sequence[int]) -> list[CentroidSet]:
    """The sets of these names at every size.

    Parameters
    ----------
    folder : Path, optional
        Where files lie; None knows what needs none.
    wanted : sequence of str
        Names, and groups: `blobs`, `real`, `quick`, `all`.
    sizes : sequence of int

    Raises
    ------
    ValueError
        A name that is no set, or whose file is not there.
    """
    here = [name for name in (*BLOBS, *SOURCES) if name in NO_FILES or _is_there(folder, name)]
    real = [name for name in here if name not in BLOBS]
    groups = {"blobs": list(BLOBS), "real": real, "quick": list(QUICK), "all": here}
    names = list(dict.fromkeys(name for word in wanted for name in groups.get(word, [word])))
    unknown = [name for name in names if name not in here]
    if unknown:
        raise ValueError(f"no set is called {unknown[0]}; there are {', '.join(here)}")
    return [_described(name, n, folder) for n in sizes for name in names]


def draw(data: CentroidSet, seed: int) -> CentroidSample:
    """Draw a sample; equal seeds give equal samples."""
    if data.name in BLOBS:
        return blobs(data.n, data.n_features, data.clusters, seed)
    points, labels = _prepared(data.name, data.folder)
    rng = np.random.default_rng([zlib.crc32(data.name.encode()), seed])
    if data.resampled:
        chosen = rng.integers(0, len(points), data.n)
        jitter = rng.normal(0.0, JITTER, (data.n, points.shape[1]))
        return CentroidSample(np.clip(points[chosen] + jitter, 0.0, 1.0), labels[chosen], None)
    chosen = rng.permutation(len(points))[: data.n]
    return CentroidSample(points[chosen], labels[chosen], None)


def blobs(n: int, d: int, clusters: int, seed: int) -> CentroidSample:
    """Round normal clusters of even shares and one spread, their means drawn anew until no two are close."""
    rng = np.random.default_rng(seed)
    least = BLOB_GAP[d <= 2]
    while True:
        centres = rng.uniform(*BLOB_MEANS, (clusters, d))
        apart = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(clusters, 1)]
        if apart.min() > least:
            break
    labels = rng.integers(0, clusters, n)
    points = centres[labels] + rng.normal(0.0, BLOB_SPREAD, (n, d))
    return CentroidSample(np.clip(points, 0.0, 1.0), labels + 1, centres)


def _described(name: str, n: int, folder: Path | None) -> CentroidSet:
    if name in BLOBS:
        return CentroidSet(name, n, BLOB_CLUSTERS, BLOB_FEATURES[BLOBS.index(name)])
    source = SOURCES[name]
    points, _ = _prepared(name, folder)
    return CentroidSet(name, n, source.clusters, points.shape[1], source.labelled, len(points) < n, folder)


@lru_cache(maxsize=4)
def _prepared(name: str, folder: Path | None) -> tuple[Points, Labels]:
    """A real set's points in [0, 1]^d, and its labels."""
    source = SOURCES[name]
    points, labels = _read(source, folder)
    points = points[:, : source.first]
    if source.standardised:
        points = (points - points.mean(axis=0)) / np.where(points.std(axis=0) > 0, points.std(axis=0), 1.0)
    if source.components is not None:
        centred = points - points.mean(axis=0)
        _, directions = np.linalg.eigh(centred.T @ centred)  # by ascending variance
        points = centred @ directions[:, ::-1][:, : source.components]
    lower, upper = np.quantile(points, [source.clipped, 1 - source.clipped], axis=0)
    margin = np.where(upper > lower, 0.0 if source.clipped else MARGIN * (upper - lower), 1.0)
    scaled = (points - lower + margin) / (upper - lower + 2 * margin)
    return np.clip(scaled, 0.0, 1.0), labels


def _read(source: Source, folder: Path | None) -> tuple[Points, Labels]:
    if not isinstance(source.read, str):
        return source.read()
    with np.load((folder or Path()) / f"{source.read}.npz") as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def _is_there(folder: Path | None, name: str) -> bool:
    read = SOURCES[name].read
    return isinstance(read, str) and folder is not None and (folder / f"{read}.npz").exists()
