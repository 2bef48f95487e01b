"""Labels of reports: the posterior equals its enumeration, and its confidence is calibrated in simulations."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from clustering.simulate import SeededEntropy
from sfumato import mechanisms
from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.model.cluster_likelihood import normal_points, widths
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.posterior import Reader, posterior
from sfumato.records.encodings import scale_many, symbol, symbols
from sfumato.specs import (
    LATTICE,
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    Encoding,
    Feature,
    GridEncoding,
    GrrMechanism,
    LatticeEncoding,
    Mechanism,
    NearestCentroidEncoding,
    PhaseEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    design_for,
)

XY = (Feature("x", 0.0, 2.0), Feature("y", -1.0, 1.0))
SIZES = np.array([0.5, 0.3, 0.2])
CENTRES = np.array([[0.3, 0.3], [0.7, 0.35], [0.5, 0.8]])  # scaled
KINDS = ["grr", "ss", "oue", "olh", "hr", "window"]


def mapped(shape: tuple[int, int] = (4, 4)) -> ClusterModel:
    """Return three clusters of cells. Some cells are empty."""
    labels = (np.arange(shape[0] * shape[1]) * 3 // (shape[0] * shape[1])).reshape(shape)
    density = (np.arange(labels.size) % 5 + (labels.ravel() == 1)).reshape(shape).astype(float)
    for cluster, size in enumerate(SIZES):
        density[labels == cluster] *= size / density[labels == cluster].sum()
    return ClusterModel("label_map", XY, SIZES, np.zeros(3), label_map=labels, density=density)


def centred(width: float = 0.08) -> ClusterModel:
    """Return three round clusters."""
    diagnostics = {"widths": [width, width, 1.5 * width]}
    centroids = CENTRES * 2 - [0, 1]
    return ClusterModel("centroids", XY, SIZES, np.zeros(3), centroids=centroids, diagnostics=diagnostics)


def round_of(encoding: Encoding, kind: str, epsilon: float) -> RoundSpec:
    return RoundSpec(XY, encoding, design_for(encoding, kind, round(epsilon * 1e9)))


def enumerate_posterior(model: ClusterModel, spec: RoundSpec, slot: int, value: bytes) -> np.ndarray:
    """Return the posterior of one report, summed over cells and the exact channel."""
    assert model.label_map is not None
    assert model.density is not None
    row = spec.mechanism.channel()[value]
    joint = np.zeros(model.n_clusters)
    for index in product(*(range(n) for n in model.label_map.shape)):
        middle = [(i + 0.5) / n for i, n in zip(index, model.label_map.shape, strict=True)]
        own = symbol(spec.encoding, middle, slot)
        assert isinstance(own, int)
        joint[model.label_map[index]] += model.density[index] * float(row[own])
    return joint / joint.sum()


def draw_people(model: ClusterModel, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scaled points drawn from the model, and their clusters."""
    random = np.random.default_rng(seed)
    if model.label_map is not None:
        assert model.density is not None
        cells = random.choice(model.density.size, size=n, p=model.density.ravel())
        index = np.stack(np.unravel_index(cells, model.label_map.shape), axis=1)
        return (index + random.random(index.shape)) / model.label_map.shape, model.label_map.ravel()[cells]
    own = random.choice(model.n_clusters, size=n, p=model.sizes)
    assert model.centroids is not None
    centres = scale_many(model.features, model.centroids)
    return np.clip(centres[own] + widths(model)[own, None] * random.normal(size=(n, 2)), 0, 1), own


def send_reports(spec: RoundSpec, mechanism: Mechanism, points: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return slots, and values through a mechanism that may differ from that of the round."""
    slots = np.random.default_rng(seed).integers(spec.encoding.n_slots, size=len(points))
    return slots, mechanism.perturb_many(symbols(spec.encoding, points, slots), SeededEntropy(seed))


def miscalibration(chances: np.ndarray, own: np.ndarray) -> float:
    """Return the largest difference between confidence and accuracy of a bin, in standard errors."""
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == own
    worst = abs(right.mean() - confidence.mean()) / np.sqrt((confidence * (1 - confidence)).mean() / len(own) + 1e-12)
    for low, high in pairwise(np.quantile(confidence, np.linspace(0, 1, 11))):
        here = (confidence >= low) & (confidence <= high)
        spread = (confidence[here] * (1 - confidence[here])).mean() / here.sum()
        if here.sum() >= 500:
            worst = max(worst, abs(right[here].mean() - confidence[here].mean()) / np.sqrt(spread + 1e-12))
    return float(worst)


class TestEvidence:
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_the_channel_up_to_a_factor_per_value(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, 6, 1_500_000_000)
        own, other = mechanism.normalised_evidence()
        for value, row in mechanism.channel().items():
            is_supported = mechanism.supports(np.frombuffer(value, np.uint8)[None, :], np.arange(mechanism.n_symbols))[
                0
            ]
            weights = np.where(is_supported, own, other)
            exact = np.array([float(chance) for chance in row])
            np.testing.assert_allclose(weights / weights.sum(), exact / exact.sum(), rtol=1e-12)

    def test_refuses_vectors(self) -> None:
        vectors = DiscreteLaplaceMechanism.design(2, 10, 10**9)
        with pytest.raises(InvalidSpec):
            vectors.normalised_evidence()
        with pytest.raises(InvalidSpec):
            vectors.supports(np.zeros((1, 4), np.uint8), np.arange(vectors.n_symbols))


class TestPosterior:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("encoding", [GridEncoding((2, 4)), ShiftedGridEncoding(2, 1, 4)], ids=str)
    def test_of_a_label_map_equals_its_enumeration(self, kind: str, encoding: Encoding) -> None:
        spec = round_of(encoding, kind, 1.0)
        values = list(spec.mechanism.channel())[:20]
        rows = np.array([list(value) for value in values], dtype=np.uint8)
        for slot in range(0, encoding.n_slots, 3):
            expected = [enumerate_posterior(mapped(), spec, slot, value) for value in values]
            found = posterior(mapped(), spec, np.full(len(values), slot), rows)
            np.testing.assert_allclose(found, expected, atol=1e-5)  # a millionth of the mass is spread evenly

    def test_of_noisy_vectors_equals_its_enumeration(self) -> None:
        steps, model = 6, centred(0.2)
        spec = round_of(LatticeEncoding(2, steps), "discrete_laplace", 4.0)
        mechanism = spec.mechanism
        assert isinstance(mechanism, DiscreteLaplaceMechanism)
        kept = np.exp(-mechanism.scale_denominator / mechanism.scale_numerator)
        noise = {z: (1 - kept) / (1 + kept) * kept ** abs(z) for z in range(-400, 401)}
        draws = np.clip(CENTRES[:, None, :] + widths(model)[:, None, None] * _dense_normal(), 0, 1)
        places = np.floor(draws * steps + 0.5).astype(int)  # those of each cluster, with equal weights
        low, high = -mechanism.margin, steps + mechanism.margin
        for sent in ([low, 3], [2, high], [-4, 9], [0, 0], [3, 5]):
            chance = np.ones(3)
            for cluster, feature in product(range(3), range(2)):
                counts = np.bincount(places[cluster, :, feature], minlength=steps + 1) / places.shape[1]
                chance[cluster] *= sum(
                    share * sum(c for z, c in noise.items() if min(max(x + z, low), high) == sent[feature])
                    for x, share in enumerate(counts)
                )
            value = b"".join((place + mechanism.margin).to_bytes(mechanism.width, "little") for place in sent)
            found = posterior(model, spec, [0], np.frombuffer(value, np.uint8)[None, :])[0]
            expected = SIZES * chance / (SIZES * chance).sum()
            np.testing.assert_allclose(found, expected, atol=0.01)  # the enumeration uses drawn people

    def test_refuses_impossible_reports(self) -> None:
        spec = round_of(GridEncoding((3,) * 2), "grr", 1.0)
        with pytest.raises(ReportMalformed) as caught:
            posterior(mapped(), spec, [0, 0], np.array([[1], [9]], np.uint8))
        assert caught.value.index == 1
        with pytest.raises(ReportMalformed) as caught:
            posterior(mapped(), spec, [1], np.array([[1]], np.uint8))
        assert caught.value.index == 0
        with pytest.raises(InvalidSpec):
            posterior(mapped(), spec, [0], np.array([[1, 1]], np.uint8))

    def test_refuses_other_features_and_too_large_rounds(self) -> None:
        spec = round_of(GridEncoding((4, 4)), "grr", 1.0)
        other = RoundSpec((XY[0], Feature("z", -1.0, 1.0)), spec.encoding, spec.mechanism)
        with pytest.raises(InvalidSpec):
            Reader(mapped(), other)
        many = ClusterModel("centroids", XY, np.ones(64) / 64, np.zeros(64), centroids=np.zeros((64, 2)))
        with pytest.raises(InvalidSpec):
            Reader(many, round_of(GridEncoding((1024, 512)), "grr", 1.0))
        with pytest.raises(InvalidSpec):
            Reader(mapped(), round_of(LatticeEncoding(2, 10), "auto", 1.0))

    def test_equals_the_sizes_without_information(self) -> None:
        spec = RoundSpec(XY, GridEncoding((4, 1)), GrrMechanism(4, 1 << 62))  # p = q = 1/4
        np.testing.assert_allclose(posterior(mapped(), spec, [0], np.array([[2]], np.uint8))[0], SIZES, rtol=1e-9)
        spec = round_of(LatticeEncoding(2, 10), "auto", 1.0)
        none = np.zeros((0, spec.mechanism.value_bytes), np.uint8)
        assert posterior(centred(), spec, [], none).shape == (0, 3)


def _dense_normal() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(200_000, 2))


WAVES = PhaseEncoding(((300, 0), (0, 400), (250, -250), (500, 120)), 16)
AT_CENTRES = NearestCentroidEncoding(tuple(tuple(int(x * LATTICE) for x in row) for row in CENTRES))
NEAREST = NearestCentroidEncoding(tuple(tuple(int(x * LATTICE) for x in row) for row in CENTRES + 0.03))
ROUNDS = [
    (mapped, GridEncoding((4, 4)), "ss"),
    (mapped, ShiftedGridEncoding(2, 2, 2), "olh"),
    (mapped, GridEncoding((2, 4)), "hr"),
    (centred, GridEncoding((9, 7)), "oue"),
    (centred, WAVES, "window"),
    (centred, NEAREST, "ss"),
    (centred, CentroidSignEncoding(NEAREST.centroids), "grr"),
    (centred, LatticeEncoding(2, 100), "discrete_laplace"),
]


@pytest.mark.parametrize(
    ("build", "encoding", "kind"), ROUNDS, ids=lambda part: getattr(part, "type", getattr(part, "__name__", str(part)))
)
class TestConfidence:
    N = 60_000

    def test_equals_the_accuracy(self, build, encoding: Encoding, kind: str) -> None:
        model, spec = build(), round_of(encoding, kind, 2.0)
        points, own = draw_people(model, self.N, seed=1)
        slots, values = send_reports(spec, spec.mechanism, points, seed=2)
        assert miscalibration(posterior(model, spec, slots, values), own) < 5

    def test_differs_from_the_accuracy_for_a_channel_30_percent_off(self, build, encoding: Encoding, kind: str) -> None:
        model, spec = build(), round_of(encoding, kind, 2.0)
        points, own = draw_people(model, self.N, seed=1)
        believed = round_of(encoding, kind, 2.6)
        slots, values = send_reports(spec, spec.mechanism, points, seed=2)
        if kind == "discrete_laplace":  # the same width of the value, another scale
            values = spec.mechanism.vectors_of(values)
            values = _encode(believed.mechanism, values)
        elif kind in ("ss", "window", "olh"):
            believed = RoundSpec(XY, encoding, _off(spec.mechanism))
        assert miscalibration(posterior(model, believed, slots, values), own) > 6


def _off(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with a threshold for 30 % more epsilon."""
    name = {"ss": "hold_threshold", "window": "inside_threshold", "olh": "keep_threshold"}[mechanism.type]
    share = getattr(mechanism, name) / 2**64
    odds = share / (1 - share) * np.exp(0.6)
    return replace(mechanism, **{name: int(odds / (1 + odds) * 2**64)})


def _encode(mechanism: Mechanism, vectors: np.ndarray) -> np.ndarray:
    """Return vectors as values of a mechanism with another scale."""
    assert isinstance(mechanism, DiscreteLaplaceMechanism)
    sent = np.clip(vectors + mechanism.margin, 0, mechanism.steps + 2 * mechanism.margin).astype("<u8")
    parts = sent.view(np.uint8).reshape(*vectors.shape, 8)[:, :, : mechanism.width]
    return np.ascontiguousarray(parts).reshape(len(vectors), -1)


class TestLargeEpsilon:
    @pytest.mark.parametrize(
        ("encoding", "kind"), [(GridEncoding((4, 4)), "grr"), (GridEncoding((16, 8)), "ss")], ids=str
    )
    def test_labels_by_a_map_equal_those_of_the_points(self, encoding: GridEncoding, kind: str) -> None:
        points = np.random.default_rng(3).random((2000, 2))  # includes empty cells
        spec = round_of(encoding, kind, 32.0)
        slots, values = send_reports(spec, spec.mechanism, points, seed=4)
        model = mapped(encoding.cells)
        labels = posterior(model, spec, slots, values).argmax(axis=1)
        np.testing.assert_array_equal(labels, model.assign(points * 2 - [0, 1]))

    @pytest.mark.parametrize(
        "spec",
        [
            RoundSpec(XY, LatticeEncoding(2, 1000), DiscreteLaplaceMechanism(2, 1000, 1, 2, 16)),
            RoundSpec(XY, LatticeEncoding(2, 1000), DiscreteLaplaceMechanism(2, 1000, 0, 1, 0)),
            round_of(GridEncoding((64, 64)), "grr", 32.0),
            round_of(
                NearestCentroidEncoding(tuple(tuple(int(x * LATTICE) for x in row) for row in CENTRES)), "ss", 32.0
            ),
        ],
        ids=lambda spec: spec.mechanism.type,
    )
    def test_labels_by_centroids_equal_those_of_the_points(self, spec: RoundSpec) -> None:
        model = ClusterModel("centroids", XY, np.ones(3) / 3, np.zeros(3), centroids=CENTRES * 2 - [0, 1])
        points = np.random.default_rng(3).random((2000, 2))
        slots, values = send_reports(spec, spec.mechanism, points, seed=4)
        labels = posterior(model, spec, slots, values).argmax(axis=1)
        agrees = labels == model.assign(points * 2 - [0, 1])
        assert agrees.mean() > (0.97 if isinstance(spec.encoding, GridEncoding) else 0.995)  # cells lie across borders


class TestClusterLikelihood:
    def test_is_normal_in_many_features(self) -> None:
        for n_features, off in ((1, 0.01), (8, 0.04), (64, 0.12)):
            points = normal_points(n_features, 1024)
            np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
            np.testing.assert_allclose(points.T @ points / len(points), np.eye(n_features), atol=1e-9)
            within = (np.abs(points) < 1).mean(axis=0)
            np.testing.assert_allclose(within, 0.683, atol=off)

    def test_has_the_widths_of_the_model(self) -> None:
        assert widths(centred(0.1)).tolist() == pytest.approx([0.1, 0.1, 0.15])
        plain = ClusterModel("centroids", XY, SIZES, np.zeros(3), centroids=CENTRES)
        assert widths(plain).tolist() == [0.06] * 3
        gridded = ClusterModel("centroids", XY, SIZES, np.zeros(3), centroids=CENTRES, diagnostics={"inertia": 0.02})
        assert widths(gridded).tolist() == pytest.approx([0.1] * 3)
        for wrong in ([0.1], [0.1, 0.1, -1.0], [0.1, 0.1, float("nan")]):
            with pytest.raises(InvalidSpec):
                widths(ClusterModel("centroids", XY, SIZES, np.zeros(3), diagnostics={"widths": wrong}))
