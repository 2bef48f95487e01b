"""Helpers for tests of local plans: simulated devices, the cost of rounds, and checks of a published model."""

import json

import numpy as np
import pytest

from clustering.registry import start
from clustering.rounds.plan import drive
from clustering.simulate import SeededEntropy, collect
from sfumato.model.cluster_model import model_from_wire
from sfumato.privacy.accounting import cost
from sfumato.specs import Feature


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def mixture(n, centres, shares=None, width=0.06, seed=1):
    """Return points of normal clusters, cut to the box, and their clusters."""
    rng = np.random.default_rng(seed)
    centres = np.asarray(centres, dtype=float)
    labels = rng.choice(len(centres), n, p=shares)
    return (centres[labels] + rng.normal(0, width, (n, centres.shape[1]))).clip(0, 1), labels


class Devices:
    """Devices with one point each. They keep the rounds that they answered."""

    def __init__(self, points, seed=1):
        self.points, self.entropy = points, SeededEntropy(seed)
        self.draws = self.entropy.words(len(points))
        self.rounds = []

    def __call__(self, spec):
        self.rounds.append(collect(spec, self.points, self.entropy, self.draws))
        return self.rounds[-1]

    @property
    def specs(self):
        return [collected.spec for collected in self.rounds]

    @property
    def participations(self):
        return [spec.participation for spec in self.specs]


def run(params, points, seed=1, *, expected_reports=None):
    """Return the model and the devices that answered."""
    devices = Devices(points, seed)
    plan = start(params, features(points.shape[1]), expected_reports or max(1, len(points)))
    return drive(plan, devices), devices


def price(specs):
    """Return the cost of rounds in nano-epsilon."""
    return cost(((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano()) for spec in specs)


def assert_sound(model, n_clusters=None):
    """Check that every number of the published model is finite and in its range."""
    wire = json.loads(json.dumps(model.to_wire(), allow_nan=False))
    assert model_from_wire(wire).to_wire() == wire
    assert set(model.privacy) == set(wire)
    assert n_clusters in (None, model.n_clusters)
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes >= 0).all()
    assert (model.size_errors >= 0).all()
    lower, upper = np.array([(feature.lower, feature.upper) for feature in model.features]).T
    assert ((model.centroids >= lower) & (model.centroids <= upper)).all()
    assert model.centroids.shape == model.centroid_errors.shape == (model.n_clusters, len(lower))
    assert ((model.centroid_errors >= 0) & (model.centroid_errors <= upper - lower)).all()
    if model.type == "label_map":
        assert model.density.sum() == pytest.approx(1)
        assert (model.density >= 0).all()
        assert np.unique(model.label_map).tolist() == list(range(model.n_clusters))
        assert 0 <= model.diagnostics["expected_error"] <= 1
    else:
        assert (np.diff(model.sizes) <= 0).all()
    if "widths" in model.diagnostics:
        assert (model.sizes > 0).all()
        assert (model.size_errors < 0.3).all()
        assert (model.centroid_errors <= 0.3 * (upper - lower)).all()
        assert len(model.diagnostics["widths"]) == len(model.diagnostics["detectable"]) == model.n_clusters
