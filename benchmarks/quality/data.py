"""Data sets, samples and sources of points, as all quality benchmarks use them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Loader = Callable[..., tuple[Points, Labels]]  # a loader of scikit-learn, which takes `return_X_y`

CLUSTERS_UNLABELLED = 5  # number of clusters given to methods if a set has no labels
JITTER = 0.005  # standard deviation of the jitter of a resampled point, as a share of a feature's range
MARGIN = 0.02  # margin of the bounds on each side, as a share of a feature's range


@dataclass(frozen=True)
class DataSet:
    """A data set at one size. Tables mark a resampled set with `*`, and one without labels with `†`."""

    name: str
    n: int  # points of a sample, one per person
    clusters: int  # given to methods
    n_features: int = 2
    path: Path | None = None  # the file; None if the set is generated or comes with scikit-learn
    resampled: bool = False  # whether samples are drawn with replacement from fewer points, with jitter
    labelled: bool = True  # whether runs are scored against the labels of the set

    @property
    def mark(self) -> str:
        """Return the marks that follow the name in tables."""
        return "*" * self.resampled + "†" * (not self.labelled)


@dataclass(frozen=True, eq=False)
class Sample:
    """Points in [0, 1]^d with their labels (0 and below: none), and the true centroids if they are known."""

    points: Points
    labels: Labels
    centres: Points | None = None


@dataclass(frozen=True)
class Source:
    """A set of real points, and how they are prepared.

    A share `clipped` of points beyond each bound is moved to it, because long tails would leave the other points in a
    corner of the box. With 0, bounds are the range, widened by 2 % on each side.
    """

    source: Loader | str  # a loader of scikit-learn, or the name of a file without its ending
    clusters: int  # five if the classes are not clusters
    labelled: bool = True  # whether runs are scored against the classes; if not, against the labels of k-means
    components: int | None = None  # number of principal components; None keeps the features
    first: int | None = None  # number of features that are kept
    standardised: bool = False  # unit variance before the projection
    clipped: float = 0.0

    def path(self, folder: Path | None) -> Path | None:
        """Return the path of the file, or None if scikit-learn has the set."""
        return (folder or Path("no folder of files")) / f"{self.source}.npz" if isinstance(self.source, str) else None

    def is_available(self, folder: Path | None) -> bool:
        """Return whether the set needs no file, or its file exists."""
        path = self.path(folder)
        return path is None or path.exists()

    def prepared(self, path: Path | None) -> tuple[Points, Labels]:
        """Read points and labels, and prepare the features."""
        if path is not None:
            points, labels = read_file(path)
        else:
            assert callable(self.source)  # a set without a path has a loader
            points, labels = self.source(return_X_y=True)
            points, labels = np.asarray(points, dtype=np.float64), np.asarray(labels, dtype=np.int64) + 1
        points = points[:, : self.first]
        if self.standardised:
            points = (points - points.mean(axis=0)) / np.where(points.std(axis=0) > 0, points.std(axis=0), 1.0)
        if self.components is not None:
            centred = points - points.mean(axis=0)
            _, directions = np.linalg.eigh(centred.T @ centred)  # sorted by ascending variance
            points = centred @ directions[:, ::-1][:, : self.components]
        return points, labels


def read_file(path: Path) -> tuple[Points, Labels]:
    """Read points (`X`) and labels (`y`) of a file."""
    with np.load(path) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def expanded(names: Iterable[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return names of data sets without repetition, each group replaced by its members.

    Raises
    ------
    ValueError
        A name that is neither a group nor in the group `all`.
    """
    chosen = list(dict.fromkeys(name for word in names for name in groups.get(word, [word])))
    for name in chosen:
        if name not in groups["all"]:
            known = ", ".join([*groups, *groups["all"]])
            raise ValueError(f"no set is called {name}; there are {known}; --data names the folder of files")
    return chosen
