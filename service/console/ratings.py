"""Ratings of clusters: whether a cluster stands out from the noise, and what distinguishes it from the others.

All values follow from the released model. They cost no budget.
"""

import numpy as np

from service.console.forms import Json
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.geography import shown_values
from sfumato.model.separation import Separation
from sfumato.records.encodings import differences, scale_many, unscale_many
from sfumato.specs import circles_of

REACH = 1.959964  # standard errors of a 95 % confidence interval


def find_doubts(model: ClusterModel, apart: Separation) -> list[str | None]:
    """Return for each cluster why it is doubtful, an empty text if it is not, or None if no error is known.

    A cluster is doubtful if its share, or the distance of its centre to the nearest one, is within the 95 % interval of
    the noise around zero.
    """
    found: list[str | None] = []
    for index, (size, error) in enumerate(zip(model.sizes.tolist(), model.size_errors.tolist(), strict=True)):
        distance, distance_error = float(apart.distances[index]), float(apart.distance_errors[index])
        if np.isfinite(error) and size <= REACH * error:
            found.append("its share may be noise alone")
        elif np.isfinite(distance_error) and distance <= REACH * distance_error:
            found.append(f"its centre may be that of cluster {int(apart.nearest[index])}")
        else:
            found.append("" if np.isfinite(error) or np.isfinite(distance_error) else None)
    return found


def find_distinctions(model: ClusterModel) -> list[Json | None]:
    """Return for each cluster the feature in which it differs most, its value and error, and the mean of the others.

    Differences are relative to the range of the feature. The mean is weighted by the shares of people. On a circle,
    it is the circular mean, and a difference is that of the shorter way.
    """
    if model.centroids is None or model.n_clusters < 2:
        return [None] * model.n_clusters
    scaled = scale_many(model.features, model.centroids)
    weights = np.maximum(model.sizes, 1e-9)
    circles = circles_of(model.features)
    found: list[Json | None] = []
    for index in range(model.n_clusters):
        rest = np.arange(model.n_clusters) != index
        mean = np.average(scaled[rest], axis=0, weights=weights[rest])
        turns = np.exp(2j * np.pi * scaled[rest][:, circles])
        mean[list(circles)] = np.angle(np.average(turns, axis=0, weights=weights[rest])) / (2 * np.pi) % 1
        axis = int(np.abs(differences(scaled[[index]], mean, circles)[0]).argmax())
        feature = model.features[axis]
        error = None if model.centroid_errors is None else float(model.centroid_errors[index, axis])
        # without an error, a thousandth of the range is the finest difference that the table shows
        error = error if error is not None and 0 < error < np.inf else (feature.upper - feature.lower) / 1000
        value, others = float(model.centroids[index, axis]), float(unscale_many([feature], [[mean[axis]]])[0, 0])
        value, others = shown_values([feature, feature], [value, others])
        found.append(
            {
                "name": feature.name,
                "unit": feature.unit,
                "value": value,
                "error": error,
                "others": others,
            }
        )
    return found
