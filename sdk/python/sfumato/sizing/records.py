"""How `gated_grid_kmeans` divides what it has, by how many records there are: known to it by a noisy count alone."""

from sfumato.accounting import NANO

GRID_FEATURES = 4  # at most, for a grid over the box; above, steps on records
COUNTING = (3, 97)  # of epsilon: for the number of records, by which everything is sized, and for the rest

# u is N epsilon / d: records in units of the noise on one coordinate of their sum
ONE_MEAN_BELOW = 20.0  # u below which one centre at the mean is better than more
CLUSTERS_BY_U = 0.15  # clusters that can be told apart, at most so many times u


def usable_epsilon(epsilon_nano: int, max_per_user: int = 1) -> float:
    """What is left for clusters, over the records a user may have: noise on each of them grows with those."""
    return epsilon_nano * COUNTING[1] / sum(COUNTING) / NANO / max_per_user


def clusters_told(n_records: float, epsilon: float, n_features: int, clusters: int) -> int:
    """How many clusters `gated_grid_kmeans` looks for.

    Parameters
    ----------
    n_records : float
    epsilon : float
        `usable_epsilon`.
    n_features : int
    clusters : int
        As asked for.

    Returns
    -------
    int
        1..clusters: fewer than asked for only above four features, where noise would hide the others.
    """
    if n_features <= GRID_FEATURES:
        return clusters
    u = n_records * epsilon / n_features
    return 1 if u < ONE_MEAN_BELOW else min(max(round(CLUSTERS_BY_U * u), 1), clusters)
