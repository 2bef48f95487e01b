"""Data sets of the centroids' benchmark: blobs with known means, sets of scikit-learn, and files `DIR/*.npz`.

Files are only read. A set with fewer points than a sample needs is resampled with jitter and marked `*`; a larger one
is sampled without replacement.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine

from benchmarks.quality.data import (
    CLUSTERS_UNLABELLED,
    JITTER,
    MARGIN,
    DataSet,
    Labels,
    Points,
    Sample,
    Source,
    expanded,
)

BLOB_CLUSTERS = 4
BLOB_SPREAD = 0.06  # standard deviation of a cluster, as a share of a feature's range
BLOB_MEANS = (0.15, 0.85)
BLOB_FEATURES = (2, 4, 8, 16)
BLOBS = tuple(f"blobs_{d}" for d in BLOB_FEATURES)


SOURCES: Mapping[str, Source] = {
    "iris": Source(load_iris, 3),
    "wine": Source(load_wine, 3),
    "digits_pca8": Source(load_digits, 10, components=8),
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
QUICK = ("blobs_2", "blobs_4", "iris")


def find(folder: Path | None, names: Sequence[str], sizes: Sequence[int]) -> list[DataSet]:
    """Return the data sets of these names at every size.

    Parameters
    ----------
    folder : Path, optional
        Folder of files; without it there are only the sets that need no file.
    names : sequence of str
        Names, and groups: `blobs`, `real`, `quick`, `all`.
    sizes : sequence of int

    Raises
    ------
    ValueError
        A name that is no set, or a set without a file.
    """
    real = [name for name, source in SOURCES.items() if source.is_available(folder)]
    groups = {"blobs": BLOBS, "real": real, "quick": QUICK, "all": [*BLOBS, *real]}
    chosen = expanded(names, groups)
    return [_described(name, n, folder) for n in sizes for name in chosen]


def spread_of(data: DataSet) -> float | None:
    """Return the standard deviation of a cluster, or None if clusters are not round or their spread is unknown."""
    return BLOB_SPREAD if data.name in BLOBS else None


def draw(data: DataSet, seed: int) -> Sample:
    """Draw a sample; equal seeds give equal samples."""
    if data.name in BLOBS:
        return blobs(data.n, data.n_features, data.clusters, seed)
    points, labels = _prepared(data.name, data.path)
    rng = np.random.default_rng([zlib.crc32(data.name.encode()), seed])
    if data.resampled:
        chosen = rng.integers(0, len(points), data.n)
        jitter = rng.normal(0.0, JITTER, (data.n, points.shape[1]))
        return Sample(np.clip(points[chosen] + jitter, 0.0, 1.0), labels[chosen])
    chosen = rng.permutation(len(points))[: data.n]
    return Sample(points[chosen], labels[chosen])


def blobs(n: int, d: int, clusters: int, seed: int) -> Sample:
    """Draw round normal clusters of equal size and spread; their means are redrawn until no two are close."""
    rng = np.random.default_rng(seed)
    min_distance = 0.35 if d <= 2 else 0.45
    while True:
        centres = rng.uniform(*BLOB_MEANS, (clusters, d))
        distances = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(clusters, 1)]
        if distances.min() > min_distance:
            break
    labels = rng.integers(0, clusters, n)
    points = centres[labels] + rng.normal(0.0, BLOB_SPREAD, (n, d))
    return Sample(np.clip(points, 0.0, 1.0), labels + 1, centres)


def _described(name: str, n: int, folder: Path | None) -> DataSet:
    if name in BLOBS:
        return DataSet(name, n, BLOB_CLUSTERS, BLOB_FEATURES[BLOBS.index(name)])
    source = SOURCES[name]
    path = source.path(folder)
    points, _ = _prepared(name, path)
    return DataSet(name, n, source.clusters, points.shape[1], path, len(points) < n, source.labelled)


@lru_cache(maxsize=4)
def _prepared(name: str, path: Path | None) -> tuple[Points, Labels]:
    """Return the points of a set in [0, 1]^d, and its labels."""
    source = SOURCES[name]
    points, labels = source.prepared(path)
    lower, upper = np.quantile(points, [source.clipped, 1 - source.clipped], axis=0)
    margin = np.where(upper > lower, 0.0 if source.clipped else MARGIN * (upper - lower), 1.0)
    scaled = (points - lower + margin) / (upper - lower + 2 * margin)
    return np.clip(scaled, 0.0, 1.0), labels
