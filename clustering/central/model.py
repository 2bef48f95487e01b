"""The model a central algorithm publishes: centroids, shares of noisy counts, and what to believe of them."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering import label_regions
from clustering.label_regions import project_to_shares
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel, PrivacyStatus
from sfumato.encodings import unscale_many
from sfumato.specs import Feature

CLEAR = 30.0  # N epsilon / k below which centres are mostly noise

# All but the diagnostics is made of answers that were paid for; those hold such answers as they were given.
PRIVACY: Mapping[str, PrivacyStatus] = {**label_regions.PRIVACY, "diagnostics": "dp"}


def centroid_model(
    features: tuple[Feature, ...],
    centres: NDArray[np.float64],
    counts: NDArray[np.float64],
    count_variances: NDArray[np.float64],
    *,
    centre_errors: NDArray[np.float64] | None = None,
    spreads: NDArray[np.float64] | None = None,
    diagnostics: Mapping[str, Any],
    warnings: Sequence[str] = (),
) -> ClusterModel:
    """Centroids by descending noisy count.

    Parameters
    ----------
    features : tuple of Feature
    centres : ndarray of shape (k, d)
        In [0, 1]^d.
    counts : ndarray of shape (k,)
        Noisy numbers of records; negative ones too, as they were answered.
    count_variances : ndarray of shape (k,)
        Of their noise.
    centre_errors : ndarray of shape (k, d), optional
        Standard errors of the centres, as shares of each feature's range.
    spreads : ndarray of shape (k,), optional
        Root mean square distance of a cluster's records from its centre in [0, 1]^d, noisy; not
        a number where it is not known.
    diagnostics : mapping
        Plain JSON values; `noisy_counts` and `spreads` are added in the centroids' order.
    warnings : sequence of str

    Returns
    -------
    ClusterModel
        Sizes are the nearest non-negative shares of sum one, `size_errors` those of a share of
        the counts' sum, by the noise alone.
    """
    order = np.argsort(-counts, kind="stable")
    counts, variances, centres = counts[order], count_variances[order], centres[order]
    # a total far below its parts is noise: held at what floats can tell from one
    total = max(float(counts.sum()), float(np.abs(counts).max()) * 2.0**-20, 1.0)
    shares = project_to_shares(counts / total)
    spread = (1 - shares) ** 2 * variances + shares**2 * (variances.sum() - variances)
    ranges = np.array([feature.upper - feature.lower for feature in features])
    errors = None if centre_errors is None else np.minimum(centre_errors[order], 1.0) * ranges
    known = np.full(len(order), np.nan) if spreads is None else spreads[order]
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=shares,
        size_errors=np.minimum(np.sqrt(spread) / total, 1.0),
        centroids=unscale_many(features, np.clip(centres, 0.0, 1.0)),
        centroid_errors=errors,
        diagnostics={
            **diagnostics,
            "noisy_counts": counts.tolist(),
            "spreads": [float(value) if np.isfinite(value) else None for value in known],
        },
        warnings=tuple(warnings),
        privacy=PRIVACY,
    )


class NoisyCount(NamedTuple):
    """How many records there are, as answered."""

    value: float
    variance: float  # of its noise

    @property
    def surely(self) -> float:
        """So many at least, but for one answer in a hundred."""
        return self.value - 3 * sqrt(self.variance)


def is_clear(count: NoisyCount, epsilon_nano: int, clusters: int) -> bool:
    """Whether N epsilon / k, which governs all of these methods, surely leaves more than noise.

    `epsilon_nano` is that of one record: where a user may have several, a share of the declared one.
    """
    return count.surely * epsilon_nano >= CLEAR * clusters * NANO


def cautions(count: NoisyCount | float, epsilon_nano: int, clusters: int, n_found: int) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences. Made of noisy counts: free.

    Parameters
    ----------
    count : NoisyCount or float
        Of all records; a number alone is taken as it is.
    epsilon_nano : int
        Of one record, as in `is_clear`.
    clusters : int
        As asked for.
    n_found : int
        As published.
    """
    said = []
    if not isinstance(count, NoisyCount):
        count = NoisyCount(count, 0.0)
    if not is_clear(count, epsilon_nano, clusters):
        needed = int(np.ceil(CLEAR * clusters * NANO / max(epsilon_nano, 1)))
        said.append(
            f"About {max(0, round(count.value))} records are few for {clusters} clusters at this epsilon: "
            f"centroids may be noise alone. About {needed} would make them clear."
        )
    if n_found < clusters:
        said.append(hidden(n_found))
    return tuple(said)


def hidden(n_found: int) -> str:
    """That there are fewer clusters than were asked for, in a sentence."""
    if n_found == 1:
        return "Only one place stands out from noise, so there is one cluster."
    return f"Only {n_found} places stand out from noise, so there are {n_found} clusters."
