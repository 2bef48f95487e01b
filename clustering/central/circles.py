"""Records with periodic features as points on circles.

A point depends on its record and the public bounds alone. So one record changes a sum over points by its own term,
which the query clips to a public radius. The two coordinates of a circle are at most `DIAMETER` apart, and a plain
feature 1.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, from_places, iterate_blocks, to_places
from clustering.circles import Circles
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import scale_many, unscale_errors, unscale_many
from sfumato.specs import Feature


@dataclass(frozen=True)
class RecordCircles(Circles):
    """The map from records to points, in lattice places."""

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the points of a block of records: (n, n_features)."""
        found = np.take(points, self.sources, axis=1)
        for first in self.firsts:
            along = from_places(points[:, self.sources[first], None].astype(np.int64))
            found[:, first : first + 2] = to_places(_ONE.to_points(along))
        return found

    def cells(self, cells: Cells) -> Cells:
        """Return cells of records as cells of their points."""
        return CellsAlong(self, cells) if self.places else cells

    def expand(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return a plain feature for each coordinate of a point."""
        pairs = [(features[source].lower, features[source].upper) for source in self.sources]
        return tuple(Feature(str(place), *bounds) for place, bounds in enumerate(pairs))

    def restore(self, model: ClusterModel, features: tuple[Feature, ...]) -> ClusterModel:
        """Return the model over the features of the records, from one over the coordinates. No privacy cost.

        The centre of a cluster is its circular mean: the direction of the mean of its points.
        """
        if model.centroids is None or model.centroid_errors is None:
            return model
        ranges = np.array([each.period for each in features])
        centres = scale_many(model.features, model.centroids)
        squares = (model.centroid_errors / ranges[self.sources]) ** 2
        errors = self.limit_errors(np.sqrt(np.einsum("kij,kj->ki", self.slopes(centres) ** 2, squares)))
        centroids = unscale_many(features, self.along(centres))
        return replace(
            model, features=features, centroids=centroids, centroid_errors=unscale_errors(features, centroids, errors)
        )


_ONE = RecordCircles(1, (0,))


@dataclass(frozen=True, eq=False)
class CellsAlong:
    """Cells of records as cells of their points on circles."""

    circles: RecordCircles
    inner: Cells

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return self.inner.n_cells

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        for block in iterate_blocks(*points.shape):
            along = self.circles.along(from_places(points[block].astype(np.int64)))
            labels[block] = self.inner.index(to_places(along).astype(np.int32))
        return labels
