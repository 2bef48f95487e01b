"""Distances and silhouettes of clusters, and matches between two models, against plain twins."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.separation import _MAX_DISTANCES, compare, separation
from sfumato.specs import Embedding, Feature
from tests.sfumato.plotting.test_figures import centroids, label_map


def blobs(cells: int = 20, gap: int = 10) -> ClusterModel:
    """Return two squares of mass, `gap` cells apart."""
    density = np.zeros((cells, cells))
    density[2:4, 8:12] = 1
    density[2 + gap : 4 + gap, 8:12] = 3
    labels = (np.indices(density.shape)[0] >= 3 + gap // 2).astype(np.int64)
    density /= density.sum()
    centres = np.array([[3 / cells, 0.5], [(3 + gap) / cells, 0.5]])
    features = (Feature("a", 0, 1), Feature("b", 0, 1))
    return ClusterModel(
        "label_map", features, np.array([0.25, 0.75]), np.full(2, 0.01), centres, label_map=labels, density=density
    )


def plain_silhouettes(model: ClusterModel) -> list[float]:
    """Return silhouettes, computed cell by cell."""
    assert model.label_map is not None
    assert model.density is not None
    assert model.centroids is not None
    lower = np.array([feature.lower for feature in model.features])
    ranges = np.array([feature.upper - feature.lower for feature in model.features])
    centres = (model.centroids - lower) / ranges
    found = []
    for cluster in range(model.n_clusters):
        total = mass = 0.0
        for cell in np.ndindex(model.label_map.shape):
            if model.label_map[cell] == cluster and model.density[cell] > 0:
                place = (np.array(cell) + 0.5) / model.label_map.shape
                away = np.sqrt(((centres - place) ** 2).sum(axis=1))
                own, other = away[cluster], np.delete(away, cluster).min()
                total += model.density[cell] * (other - own) / max(own, other)
                mass += model.density[cell]
        found.append(total / mass)
    return found


class TestSeparation:
    @pytest.mark.parametrize("n_features", [1, 2, 3])
    def test_equals_the_plain_twin(self, n_features: int) -> None:
        model = label_map(n_features)
        found = separation(model)
        assert found.silhouettes == pytest.approx(plain_silhouettes(model))
        assert found.silhouette == pytest.approx(float(found.silhouettes @ model.sizes / model.sizes.sum()))

    def test_decreases_from_one_with_the_gap(self) -> None:
        values = [separation(blobs(gap=gap)).silhouette for gap in (14, 10, 6, 3)]
        assert values[0] > 0.85
        assert values == sorted(values, reverse=True)

    def test_is_close_to_the_silhouette_of_points(self) -> None:
        """Compare with the full silhouette of scikit-learn for points at the centres of cells."""
        model = blobs(gap=8)
        assert model.density is not None
        assert model.label_map is not None
        full_cells = np.argwhere(model.density > 0)
        points, labels = (full_cells + 0.5) / 20, model.label_map[tuple(full_cells.T)]
        full = silhouette_samples(points, labels)
        for cluster in range(2):
            assert separation(model).silhouettes[cluster] == pytest.approx(full[labels == cluster].mean(), abs=0.1)

    def test_of_a_ring_around_a_cluster_is_small(self) -> None:
        cells = 21
        place = (np.indices((cells, cells)).transpose(1, 2, 0) - cells // 2) / (cells // 2)
        radius = np.sqrt((place**2).sum(axis=2))
        density = ((radius < 0.2) | ((radius > 0.7) & (radius < 0.9))).astype(float)
        model = replace(
            blobs(),
            label_map=(radius > 0.45).astype(np.int64),
            density=density / density.sum(),
            centroids=np.array([[0.5, 0.5], [0.51, 0.5]]),
        )
        assert separation(model).silhouettes[1] < 0.1

    def test_without_density_has_only_distances(self) -> None:
        model = centroids(3, clusters=4)
        found = separation(model)
        assert np.isnan(found.silhouettes).all()
        assert np.isnan(found.silhouette)
        assert model.centroids is not None
        for cluster, centre in enumerate(model.centroids):
            away = np.sqrt(((model.centroids - centre) ** 2).sum(axis=1))
            away[cluster] = np.inf
            assert found.nearest[cluster] == away.argmin()
            assert found.distances[cluster] == pytest.approx(away.min())

    def test_has_errors_of_distances(self) -> None:
        """Compare with the deviation over drawn centres."""
        errors = np.array([[0.01, 0.03], [0.02, 0.04]])
        model = replace(blobs(), centroid_errors=errors)
        found = separation(model)
        assert found.distance_errors == pytest.approx([np.hypot(0.01, 0.02)] * 2)  # they differ along a alone
        chance = np.random.default_rng(1)
        drawn = chance.normal(model.centroids, errors, size=(4000, 2, 2))
        scatter = np.sqrt(((drawn[:, 1] - drawn[:, 0]) ** 2).sum(axis=1)).std()
        assert found.distance_errors[0] == pytest.approx(scatter, rel=0.1)

    @pytest.mark.parametrize("clusters", [0, 1])
    def test_of_at_most_one_cluster_is_unknown(self, clusters: int) -> None:
        found = separation(centroids(2, clusters=clusters))
        assert found.nearest.tolist() == [-1] * clusters
        assert np.isnan(found.distances).all()

    def test_of_equal_centres_is_zero(self) -> None:
        model = replace(blobs(), centroids=np.full((2, 2), 0.5), centroid_errors=np.full((2, 2), 0.1))
        assert separation(model).distances.tolist() == [0, 0]

    def test_of_an_embedding_needs_the_memory_of_a_few_copies(self) -> None:
        k, embedding = 100, Embedding(1536)
        centres = np.random.default_rng(0).normal(0, 0.1, size=(k, 1536))
        shares = np.full(k, 1 / k)
        model = ClusterModel("centroids", embedding.features, shares, shares, centres, centroid_errors=centres**2)
        tracemalloc.start()
        try:
            separation(model)
            compare(model, model)
            assert (model.assign(centres) == np.arange(k)).all()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 12 * centres.nbytes

    def test_coarsens_the_finest_grid(self) -> None:
        assert 10 * _MAX_DISTANCES < 1024 * 1024 * 256
        assert np.isfinite(separation(label_map(cells=1024, clusters=256)).silhouette)


class TestCompare:
    def test_a_model_agrees_with_itself(self) -> None:
        found = compare(label_map(), label_map())
        assert [(each.left, each.right) for each in found.matches] == [(0, 0), (1, 1), (2, 2)]
        assert [each.overlap for each in found.matches] == pytest.approx([1, 1, 1])
        assert found.agreement == pytest.approx(1)

    def test_matches_renumbered_clusters(self) -> None:
        model = label_map()
        assert model.label_map is not None
        turned = replace(model, label_map=2 - model.label_map, sizes=model.sizes[::-1])
        found = compare(model, turned)
        assert [(each.left, each.right) for each in found.matches] == [(0, 2), (1, 1), (2, 0)]
        assert found.agreement == pytest.approx(1)

    def test_leaves_clusters_without_partner(self) -> None:
        found = compare(label_map(clusters=2), label_map(clusters=3))
        assert sorted(each.left for each in found.matches if each.left is not None) == [0, 1]
        assert sorted(each.right for each in found.matches if each.right is not None) == [0, 1, 2]
        assert sum(each.left is None for each in found.matches) == 1
        assert 0.5 < found.agreement < 1

    def test_uses_centres_without_density(self) -> None:
        model = centroids(2, clusters=4)
        assert model.centroids is not None
        moved = replace(model, centroids=np.clip(model.centroids[::-1] + 0.001, 0, 1))
        found = compare(model, moved)
        assert [(each.left, each.right) for each in found.matches] == [(0, 3), (1, 2), (2, 1), (3, 0)]
        assert np.isnan(found.agreement)

    def test_uses_the_density_of_either_model(self) -> None:
        right = blobs()
        left = ClusterModel("centroids", right.features, right.sizes, right.size_errors, centroids=right.centroids)
        assert [(each.left, each.right) for each in compare(left, right).matches] == [(0, 0), (1, 1)]

    def test_refuses_other_features(self) -> None:
        with pytest.raises(InvalidSpec, match="features or bounds"):
            compare(label_map(2), label_map(3))

    def test_of_no_clusters_is_empty(self) -> None:
        assert compare(centroids(2, clusters=0), centroids(2, clusters=0)).matches == ()
