"""Maps as arrays: borders between clusters, hue by cluster, tone by density."""

import numpy as np
import pytest

from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting import shading
from sfumato.specs import Feature


def unit_edges(lines: np.ndarray, shape: tuple[int, int]) -> set[tuple[int, int, int, int]]:
    """Return the edges of cells that the lines consist of."""
    edges = set()
    for (x, y), (x2, y2) in np.rint(lines * shape).astype(int).tolist():
        steps = max(x2 - x, y2 - y)
        dx, dy = (x2 - x) // steps, (y2 - y) // steps
        edges |= {(x + i * dx, y + i * dy, x + (i + 1) * dx, y + (i + 1) * dy) for i in range(steps)}
    return edges


def naive_edges(labels: np.ndarray) -> set[tuple[int, int, int, int]]:
    columns, rows = labels.shape
    upright = {
        (x + 1, y, x + 1, y + 1) for x in range(columns - 1) for y in range(rows) if labels[x, y] != labels[x + 1, y]
    }
    level = {
        (x, y + 1, x + 1, y + 1) for x in range(columns) for y in range(rows - 1) if labels[x, y] != labels[x, y + 1]
    }
    return upright | level


class TestBorders:
    @pytest.mark.parametrize("shape", [(7, 5), (1, 6), (4, 1), (1, 1)])
    def test_are_the_edges_between_clusters(self, shape: tuple[int, int]) -> None:
        labels = np.random.default_rng(5).integers(0, 3, size=shape)
        assert unit_edges(shading.borders(labels), shape) == naive_edges(labels)

    def test_are_joined_to_straight_lines(self) -> None:
        labels = np.zeros((6, 9), dtype=np.int64)
        labels[2:] = 1
        assert shading.borders(labels).tolist() == [[[2 / 6, 0.0], [2 / 6, 1.0]]]
        assert shading.borders(np.zeros((3, 3), dtype=np.int64)).shape == (0, 2, 2)  # one cluster

    def test_at_the_seam_of_a_circle_are_at_both_ends(self):
        labels = np.array([[0, 0], [0, 1], [1, 1]])
        plain = shading.borders(labels).tolist()
        seam = [line for line in shading.borders(labels, (0,)).tolist() if line not in plain]
        assert seam == [[[0.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]]
        up = [line for line in shading.borders(labels, (1,)).tolist() if line not in plain]
        assert up == [[[1 / 3, 0.0], [2 / 3, 0.0]], [[1 / 3, 1.0], [2 / 3, 1.0]]]


class TestShaded:
    def test_denser_cells_are_darker(self) -> None:
        density = np.array([[0.0, 0.1], [0.3, 0.6]])
        image = shading.shade(np.zeros((2, 2), dtype=np.int64), density)
        corners = image[[0, 0, -1, -1], [0, -1, 0, -1]].sum(axis=1)
        assert (np.diff(corners) < 0).all()
        assert image[0, 0] == pytest.approx([1, 1, 1])
        assert image.min() >= 0
        assert image.max() <= 1

    def test_a_cell_has_one_hue(self) -> None:
        image = shading.shade(np.array([[0, 1]]), None)
        left, right = image[0, : image.shape[1] // 2], image[0, image.shape[1] // 2 :]
        assert (left == left[0]).all()
        assert (right == right[0]).all()
        assert left[0, 2] > left[0, 0]  # blue
        assert right[0, 0] > right[0, 2]  # vermilion

    @pytest.mark.parametrize("density", [np.zeros((3, 3)), np.full((3, 3), 1 / 9)])
    def test_an_even_density_is_even(self, density: np.ndarray) -> None:
        image = shading.shade(np.zeros((3, 3), dtype=np.int64), density)
        assert np.isfinite(image).all()
        assert np.ptp(image, axis=(0, 1)) == pytest.approx([0, 0, 0])


class TestScale:
    def test_equal_densities_have_equal_tones_in_all_maps(self) -> None:
        dense, sparse = np.array([[0.1, 0.5]]), np.array([[0.1, 0.02]])
        scale = shading.scale_of([dense, sparse])
        assert scale == pytest.approx((0.18, np.log1p(0.5 / 0.18)))
        assert shading.tones(dense, scale)[0] == pytest.approx([np.log1p(0.1 / 0.18) / scale.peak, 1])
        assert shading.tones(sparse, scale)[0, 0] == shading.tones(dense, scale)[0, 0]
        assert shading.tones(sparse)[0].max() == 1  # alone, each map has the darkest tone

    def test_a_map_without_people_is_blank(self) -> None:
        assert shading.scale_of([np.zeros((2, 2))]) == (0, 0)
        assert not shading.tones(np.zeros((2, 2))).any()


class TestPlane:
    def test_of_three_features_has_the_largest_cluster(self) -> None:
        labels = np.zeros((2, 2, 3), dtype=np.int64)
        labels[:, :, 2] = 1
        density = np.array([[[1.0, 1, 5], [1, 1, 1]], [[2, 2, 3], [0, 0, 1]]]) / 18
        model = ClusterModel(
            "label_map",
            tuple(Feature(name, 0.0, 1.0) for name in "abc"),
            np.array([8 / 18, 10 / 18]),
            np.zeros(2),
            label_map=labels,
            density=density,
        )
        cells = shading.plane_cells(model, (0, 1))
        assert cells is not None
        assert cells[0].tolist() == [[1, 0], [0, 1]]
        assert cells[1] == pytest.approx(density.sum(axis=2))
        across = shading.plane_cells(model, (0, 2))
        assert across is not None
        assert across[0].tolist() == [[0, 0, 1], [0, 0, 1]]

    def test_of_centroids_has_the_nearest_one(self) -> None:
        features = (Feature("a", 0.0, 2.0), Feature("b", 0.0, 1.0))
        model = ClusterModel(
            "centroids", features, np.full(2, 0.5), np.zeros(2), centroids=np.array([[0.5, 0.5], [1.5, 0.5]])
        )
        cells = shading.plane_cells(model, (0, 1))
        assert cells is not None
        assert (cells[0][:128] == 0).all()
        assert (cells[0][128:] == 1).all()
        assert cells[1] is None


class TestPalette:
    def test_colours_differ_and_repeat(self) -> None:
        hues = [shading.colour(cluster) for cluster in range(len(shading.PALETTE))]
        assert len(set(hues)) == len(hues) == 10
        assert shading.colour(10) == hues[0]
