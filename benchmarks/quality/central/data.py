"""Data sets of the central benchmark: normal blobs, sets of scikit-learn, and files `DIR/*.npz`.

No set is resampled, because in the central model the number of records limits the quality of every method. The box is
the range of a set, widened by 2 % on each side, or more where `Blobs.box` states it. In production the analyst declares
public bounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine

from benchmarks.quality.data import CLUSTERS_UNLABELLED, MARGIN, DataSet, Labels, Points, Sample, Source, expanded

BLOBS_SEED = 7  # blobs are one fixed set, like a file


@dataclass(frozen=True)
class Blobs:
    """Round normal clusters with normal means."""

    n: int
    d: int
    clusters: int
    spread: float  # standard deviation of a cluster in each feature; that of the means is 1
    box: float = 1.0  # width of the box over that of the widened range


SETS: Mapping[str, Blobs | Source] = {
    "blobs_2_10k": Blobs(10_000, 2, 15, 0.2),
    "blobs_2_100k": Blobs(100_000, 2, 15, 0.2),
    "blobs_2_100k_wide": Blobs(100_000, 2, 15, 0.2, box=4.0),
    "blobs_4_100k": Blobs(100_000, 4, 8, 0.3),
    "blobs_8_100k": Blobs(100_000, 8, 8, 0.45),
    "blobs_16_100k": Blobs(100_000, 16, 8, 0.64),
    "blobs_16_20k_k26": Blobs(20_000, 16, 26, 0.85),  # overlapping; as many classes as the set `letter`
    "iris": Source(load_iris, 3),
    "wine": Source(load_wine, 3),
    "digits": Source(load_digits, 10),
    "s1": Source("sipu_s1", 15),
    "s3": Source("sipu_s3", 15),
    "a1": Source("sipu_a1", 20),
    "a3": Source("sipu_a3", 50),
    "unbalance": Source("sipu_unbalance", 8),
    "birch1": Source("sipu_birch1", 100),
    "check_ins": Source("geo_gowalla_nyc", CLUSTERS_UNLABELLED, labelled=False),
    "uber": Source("geo_uber_nyc_apr14", CLUSTERS_UNLABELLED, labelled=False),
    "xclara": Source("shape_xclara", 3, labelled=False),
    "credit": Source("tab_credit_default", CLUSTERS_UNLABELLED, labelled=False),
    "statlog": Source("uci_statlog", 7),
    "mnist_pca8": Source("hd_mnist_t10k_first5000", 10, components=8),
    "mnist_pca16": Source("hd_mnist_t10k_first5000", 10, components=16),
}
QUICK = ("blobs_2_10k", "iris")


def find(folder: Path | None, names: Sequence[str], _sizes: Sequence[int] = ()) -> list[DataSet]:
    """Return the data sets of these names; a group leaves out sets without a file.

    Parameters
    ----------
    folder : Path, optional
        Folder of files; without it there are only the sets that need no file.
    names : sequence of str
        Names, and groups: `blobs`, `real`, `quick`, `all`.

    Raises
    ------
    ValueError
        A name that is no set, or a set without a file.
    """
    blobs = [name for name, kind in SETS.items() if isinstance(kind, Blobs)]
    groups = {"blobs": blobs, "real": [name for name in SETS if name not in blobs], "quick": QUICK, "all": list(SETS)}
    missing = [name for name, kind in SETS.items() if isinstance(kind, Source) and not kind.is_available(folder)]
    for name in names:
        if name in missing:
            raise ValueError(f"the file of {name} is missing; --data names the folder of files")
    return [_described(name, folder) for name in expanded(names, groups) if name not in missing]


def draw(data: DataSet) -> Sample:
    """Return the records of a set, scaled to its box."""
    return _scaled(data.name, data.path)


@cache
def _scaled(name: str, path: Path | None) -> Sample:
    kind = SETS[name]
    if isinstance(kind, Blobs):
        points, labels = _blobs(kind)
    else:
        points, labels = kind.prepared(path)
    box = kind.box if isinstance(kind, Blobs) else 1.0
    lower, upper = points.min(axis=0), points.max(axis=0)
    width = np.where(upper > lower, upper - lower, 1.0)
    scaled = (points - (lower + upper) / 2) / (width * (1 + 2 * MARGIN) * box) + 0.5
    return Sample(np.clip(scaled, 0.0, 1.0), labels)


def _described(name: str, folder: Path | None) -> DataSet:
    kind = SETS[name]
    path, labelled = (None, True) if isinstance(kind, Blobs) else (kind.path(folder), kind.labelled)
    points = _scaled(name, path).points
    return DataSet(name, len(points), kind.clusters, points.shape[1], path, labelled=labelled)


def _blobs(kind: Blobs) -> tuple[Points, Labels]:
    rng = np.random.default_rng(BLOBS_SEED)
    means = rng.normal(0.0, 1.0, (kind.clusters, kind.d))
    labels = rng.integers(0, kind.clusters, kind.n)
    return means[labels] + rng.normal(0.0, kind.spread, (kind.n, kind.d)), labels + 1
