"""Share of the people at a corner of the bounds, from phases of values that were moved to the bounds.

Values outside of the bounds of several features lie at one corner, as a cluster without width. With a given number of
clusters none of them may be there. So the fit gets one more component, at the corner where the residual of the waves
agrees most. If a component of the new fit has its centre at a bound, its share is stated.
"""

from itertools import product

import numpy as np

from clustering.edges import CERTAIN
from clustering.kernels.phases import agreement
from clustering.phases.initialisation import residual
from clustering.phases.mixture_fit import Limits, Mixture, Sketch, climb, raise_to_floor, standard_errors
from sfumato.model.outside import EdgeShare, edge_share_of

MAX_FEATURES = 10  # 1,024 corners
SHARE = 0.1  # share of the additional component at the start


def edge_share_of_phases(sketch: Sketch, mixture: Mixture, limits: Limits) -> EdgeShare | None:
    """Return the share of the people at a corner, or None if there is none. No privacy cost.

    Parameters
    ----------
    sketch : Sketch
    mixture : Mixture
        The fit to this sketch.
    limits : Limits
    """
    if sketch.n_features > MAX_FEATURES or not sketch.counts.any():
        return None
    corners = np.array(list(product((0.0, 1.0), repeat=sketch.n_features)))
    scores = np.empty(len(corners))
    agreement(np.ascontiguousarray(sketch.omegas), residual(sketch, mixture), corners, scores)
    start = Mixture(
        np.vstack([mixture.centres, corners[scores.argmax()]]),
        raise_to_floor(np.append(mixture.shares * (1 - SHARE), SHARE), limits),
        np.append(mixture.widths, limits.least_width),
    )
    fitted = climb(sketch, start, limits).mixture
    errors = standard_errors(sketch, fitted)
    found = edge_share_of(fitted.centres, errors.centres, fitted.shares, errors.shares)
    return found if found is not None and found.value > CERTAIN * found.error else None
