"""`dp_uniform_grid_kmeans`: k-means over the cells of one noisy grid: EUGkM, paper 003's yardstick, made sound."""

from clustering.central.counted_grid import counted_grid
from clustering.central.synopsis import kmeans_centres, synopsis_model
from clustering.curator import Curator
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature
from sfumato.specs.central import DpUniformGridKmeans

MAX_CELLS = 1 << 17


def dp_uniform_grid_kmeans(
    params: DpUniformGridKmeans, features: tuple[Feature, ...], curator: Curator
) -> ClusterModel:
    """Count records in a plain grid, once, and run weighted k-means over its cells of positive count.

    The bounds are public, and centres start from greedy k-means++ over the noisy cells.

    Privacy: all of epsilon goes to `counted_grid`; the rest is post-processing.

    Raises
    ------
    InvalidSpec
        More than 131,072 cells.
    """
    epsilon_nano = parse_epsilon(params.epsilon)
    grid = counted_grid(curator, len(features), epsilon_nano, params.cells, MAX_CELLS)
    return synopsis_model(
        features,
        grid.synopsis,
        kmeans_centres(grid.synopsis, params.clusters, params.seed),
        params.clusters,
        epsilon_nano // curator.max_per_user,
        grid.records,
        {"grid_shape": list(grid.shape)},
    )
