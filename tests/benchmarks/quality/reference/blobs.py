"""Easy data: small round clusters, far apart."""

import numpy as np
from numpy.typing import NDArray


def blobs(n: int, clusters: int, seed: int = 0, n_features: int = 2) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Clusters of equal size on a diagonal and its mirror image, in [0, 1]^d."""
    rng = np.random.default_rng(seed)
    places = (np.arange(clusters) + 0.5) / clusters
    centres = np.stack([places if j % 2 == 0 else np.roll(places, 1) for j in range(n_features)], axis=1)
    labels = rng.integers(0, clusters, n)
    return (centres[labels] + rng.normal(0, 0.035, (n, n_features))).clip(0, 1), labels
