"""The contract of every algorithm over reports or records, for all entries of the registry."""

import json
import pickle
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustering.errors import TooFewRecords, TooFewReports
from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.plan import Collected, drive
from clustering.simulate import SeededEntropy, simulate, simulate_central
from sfumato.errors import InvalidSpec, SfumatoError
from sfumato.forecast import forecast, forecast_records
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import below_many
from sfumato.records.outside import encode_many
from sfumato.specs import ALGORITHMS, RoundSpec, to_algorithm, to_wire
from sfumato.validation import Parameter, parameters_of
from tests.clustering.local_plans import Devices, features, price

DOCS = Path(__file__).parents[2] / "docs"
N = 4000
CENTRES = np.array([[0.2, 0.3], [0.8, 0.6]])
SMALL = {"phase_sketch": {"slots": 64}, "auto": {"shape": "any"}}  # a quicker fit
WRONG: tuple[Any, ...] = ("text", [1], float("nan"), float("inf"), {"a": 1})

every_algorithm = pytest.mark.parametrize("tag", ALGORITHMS)


def parameters(tag: str, epsilon: float = 4.0, clusters: int = 2) -> Any:
    return ALGORITHMS[tag](epsilon=epsilon, clusters=clusters, **SMALL.get(tag, {}))


def is_local(tag: str) -> bool:
    return "local" in ALGORITHMS[tag].definition.trust


@cache
def blobs() -> np.ndarray[Any, Any]:
    """Return points of two separated clusters of unequal size."""
    rng = np.random.default_rng(5)
    return (CENTRES[(rng.random(N) < 0.35).astype(int)] + rng.normal(0, 0.05, (N, 2))).clip(0, 1)


def fit(tag: str, points: np.ndarray[Any, Any], seed: int = 1, **given: Any) -> ClusterModel:
    run = simulate if is_local(tag) else simulate_central
    return run(parameters(tag, **given), points, seed=seed)


def check_model(model: ClusterModel, points: np.ndarray[Any, Any]) -> None:
    """Check that all numbers are finite and in their ranges, and that each label is one of a cluster."""
    wire = json.loads(json.dumps(model.to_wire(), allow_nan=False))
    assert model_from_wire(wire).to_wire() == wire
    assert set(model.privacy) == set(wire)
    assert len(model.sizes) == model.n_clusters
    assert (model.sizes >= 0).all()
    if model.n_clusters:
        assert model.sizes.sum() == pytest.approx(1)
        assert model.centroids is not None
        assert ((model.centroids >= 0) & (model.centroids <= 1)).all()
        assert set(np.unique(model.assign(points))) <= set(range(model.n_clusters))


class Reordered:
    """Devices with reports that arrive in another order."""

    def __init__(self, points: np.ndarray[Any, Any], *, is_reordered: bool) -> None:
        self.points, self.entropy, self.is_reordered = points, SeededEntropy(3), is_reordered
        self.draws = self.entropy.words(len(points))

    def __call__(self, spec: RoundSpec) -> Collected:
        ends = float(spec.participation.lo), float(spec.participation.hi)
        points = self.points[(self.draws >= ends[0]) & (self.draws < ends[1])]
        slots = below_many(self.entropy, spec.encoding.n_slots, len(points))
        values = spec.mechanism.perturb_many(encode_many(spec, points, slots, self.entropy), self.entropy)
        order = np.random.default_rng(7).permutation(len(points)) if self.is_reordered else np.arange(len(points))
        counting = RoundAggregator(spec)
        for part in np.array_split(order, 3 if self.is_reordered else 1):
            counting.add(slots[part], values[part])
        return Collected(spec, counting.result())


@every_algorithm
class TestDeclaration:
    def test_parameters_make_a_round_trip(self, tag: str) -> None:
        params = parameters(tag)
        assert to_algorithm(to_wire(params)) == params
        copy = pickle.loads(pickle.dumps(params))  # noqa: S301 - made here
        assert (copy, copy.epsilon_nano, copy.delta_atto) == (params, params.epsilon_nano, params.delta_atto)
        assert params.epsilon_nano == 4 * NANO

    def test_a_bad_value_is_refused_by_name(self, tag: str) -> None:
        needed = {"epsilon": 1.0} | {
            each.name: 2 for each in fields(ALGORITHMS[tag]) if each.default is MISSING and each.name == "clusters"
        }
        for name, declared in parameters_of(ALGORITHMS[tag]).items():
            for value in (*WRONG, *_outside(declared)):
                with pytest.raises(SfumatoError, match=name):
                    ALGORITHMS[tag](**needed | {name: value})

    def test_an_unknown_parameter_is_refused_with_the_known_ones(self, tag: str) -> None:
        with pytest.raises(InvalidSpec, match="unknown colour: use epsilon"):
            to_algorithm(to_wire(parameters(tag)) | {"colour": 1})

    def test_the_number_of_features_is_limited(self, tag: str) -> None:
        params, most = parameters(tag), ALGORITHMS[tag].definition.max_features
        for n_features in (0, most + 1):
            with pytest.raises(InvalidSpec, match="features"):
                self._forecast(params, n_features)
        if not (is_local(tag) and tag == "auto") and not params.definition.has_block:
            assert self._forecast(params, most) is not None

    def test_has_a_forecast_and_its_cost(self, tag: str) -> None:
        found = self._forecast(parameters(tag), 2)
        assert 0 < found.epsilon_nano <= 4 * NANO
        assert found.algorithm.type != "auto"

    def test_has_documentation(self, tag: str) -> None:
        page = (DOCS / "algorithms.md").read_text()
        assert f"## `{tag}` — `{ALGORITHMS[tag].__name__}`" in page
        assert f"`{tag}`" in (DOCS / "choosing.md").read_text()
        assert (ALGORITHMS[tag].__doc__ or "").strip()

    @staticmethod
    def _forecast(params: Any, n_features: int) -> Any:
        if is_local(params.type):
            return forecast(params, n_features=n_features, expected_reports=100_000)
        return forecast_records(params, n_features=n_features, expected_records=100_000)


def _outside(declared: Parameter) -> list[Any]:
    """Return values next to the range of a parameter, and fractions of integers."""
    if declared.minimum is None or declared.maximum is None or declared.kind is tuple:
        return [] if declared.kind is not bool else [1]
    ends = [declared.minimum - 1, declared.maximum * 2 + 1, True]
    return [*ends, declared.minimum + 0.5] if declared.kind is int else ends


@every_algorithm
class TestRuns:
    def test_equal_entropy_gives_an_equal_model(self, tag: str) -> None:
        first, second, other = (fit(tag, blobs(), seed) for seed in (1, 1, 2))
        assert first.to_wire() == second.to_wire()
        assert first.to_wire() != other.to_wire()
        check_model(first, blobs())

    def test_the_order_of_people_does_not_matter(self, tag: str) -> None:
        if is_local(tag):
            models = [
                drive(start(parameters(tag), features(2), N), Reordered(blobs(), is_reordered=is_reordered))
                for is_reordered in (False, True)
            ]
        else:
            models = [fit(tag, blobs()), fit(tag, blobs()[::-1])]
        assert models[0].to_wire() == models[1].to_wire()

    def test_the_order_of_features_does_not_matter(self, tag: str) -> None:
        epsilon = 32.0 if tag == "noisy_fcm" else 8.0
        found = [fit(tag, points, epsilon=epsilon) for points in (blobs(), np.ascontiguousarray(blobs()[:, ::-1]))]
        for model, centres in zip(found, (CENTRES, CENTRES[:, ::-1]), strict=True):
            assert model.n_clusters == 2
            assert model.centroids is not None
            assert np.abs(model.centroids - centres).max() < 0.15

    def test_labels_are_those_of_the_centres(self, tag: str) -> None:
        model = fit(tag, blobs(), epsilon=16.0)
        assert (np.diff(model.sizes) <= 0).all()  # the largest cluster is the first
        assert model.assign(CENTRES).tolist() == [0, 1]

    def test_one_cluster_has_all_people(self, tag: str) -> None:
        if parameters_of(ALGORITHMS[tag])["clusters"].minimum == 2:
            with pytest.raises(InvalidSpec, match="clusters must lie in the range 2"):
                parameters(tag, clusters=1)
            return
        model = fit(tag, blobs(), clusters=1)
        check_model(model, blobs())
        assert model.n_clusters == 1
        assert set(model.assign(blobs()).tolist()) == {0}

    @pytest.mark.parametrize("n", [0, 1, 2, 30])
    def test_few_people_have_an_error_or_a_doubtful_model(self, tag: str, n: int) -> None:
        try:
            model = fit(tag, blobs()[:n], epsilon=0.1)
        except (TooFewReports, TooFewRecords):
            assert n < 30  # an error is for hardly any report
        else:
            check_model(model, blobs())
            assert model.verdict is Verdict.DOUBTFUL

    @pytest.mark.parametrize("kind", ["duplicates", "constant column", "corner"])
    def test_degenerate_data_have_a_sound_model(self, tag: str, kind: str) -> None:
        points = blobs().copy()
        if kind == "constant column":
            points[:, 1] = 0.5
        else:
            points[:] = 0.5 if kind == "duplicates" else 1.0
        check_model(fit(tag, points), points)

    def test_the_cost_is_the_charge(self, tag: str) -> None:
        params = parameters(tag, epsilon=1.0)
        if is_local(tag):
            devices = Devices(blobs())
            drive(start(params, features(2), N), devices)
            charged, stated = price(devices.specs), forecast(params, n_features=2, expected_reports=N).epsilon_nano
            assert 0 < charged <= stated <= params.epsilon_nano
        else:
            found = simulate_central(params, blobs(), seed=1).diagnostics
            assert sum(query["epsilon_nano"] for query in found["odometer"]) == found["spent_nano"]
            assert 0 < found["spent_nano"] <= params.epsilon_nano
            assert found["spent_delta_atto"] == 0
