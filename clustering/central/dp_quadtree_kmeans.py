"""`dp_quadtree_kmeans`: k-means over the leaves of a noisy tree of boxes: DPQTk-means of paper 003, made sound."""

from clustering.central.noisy_tree import noisy_tree
from clustering.central.synopsis import kmeans_centres, synopsis_model
from clustering.curator import Curator
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature
from sfumato.specs.central import DpQuadtreeKmeans


def dp_quadtree_kmeans(params: DpQuadtreeKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Weighted k-means over the leaves of positive count of `noisy_tree`, from greedy k-means++ seeds among them.

    Privacy: all of epsilon goes to the tree; the rest is post-processing. The bounds are public.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided.
    """
    epsilon_nano = parse_epsilon(params.epsilon)
    tree = noisy_tree(curator, len(features), params.clusters, epsilon_nano, params.height)
    centres = kmeans_centres(tree.synopsis, params.clusters, params.seed)
    return synopsis_model(
        features,
        tree.synopsis,
        centres,
        params.clusters,
        epsilon_nano // curator.max_per_user,
        tree.records,
        {"height": tree.height, "levels": tree.levels},
    )
