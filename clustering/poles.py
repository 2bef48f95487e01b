"""The warning about clusters of places near a pole."""

from dataclasses import replace

import numpy as np

from sfumato.model.cluster_model import ClusterModel
from sfumato.model.geography import place_of

POLAR = 75.0  # degrees; there the map stretches distances from west to east by 1/cos 75 = 3.9
_MAX_LISTED = 6  # clusters in a sentence


def warn_of_poles(model: ClusterModel) -> ClusterModel:
    """Return a model of places with a warning if centres lie near a pole. It reads released centres, at no cost.

    The projection of equal areas cuts a cluster about a pole along all meridians. The mean on the map of a cluster with
    the standard deviation w lies w² tan(latitude) / R nearer to the equator than the mean on the sphere of radius R.
    """
    plane = place_of(model.features)
    if plane is None or model.centroids is None:
        return model
    polar = np.flatnonzero(np.abs(model.centroids[:, plane[1]]) >= POLAR).tolist()
    if not polar:
        return model
    more = f" and {len(polar) - _MAX_LISTED} more" if len(polar) > _MAX_LISTED else ""
    clusters = f"cluster{'s' if len(polar) > 1 else ''} {', '.join(map(str, polar[:_MAX_LISTED]))}{more}"
    warning = (
        f"Near a pole: {clusters}. Beyond {POLAR:g} degrees of latitude, the map stretches distances from west to east "
        f"by {1 / np.cos(np.radians(POLAR)):.1f} or more. A cluster can be cut in two there, and its centre can be off "
        "by more than its stated error. For people about a pole, use the kilometres of a polar projection as features."
    )
    return replace(model, warnings=(*model.warnings, warning))
