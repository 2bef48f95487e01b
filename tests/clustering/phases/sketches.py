"""Sketches of simulated devices, for tests of the fits of phases."""

from clustering.phases.mixture_fit import Sketch, sketch_of
from clustering.phases.waves import waves_for
from sfumato.mechanisms import design
from sfumato.specs import RoundSpec
from tests.clustering.local_plans import Devices, features


def sketch_points(points, epsilon=4.0, n_waves=256, seed=1, lengths=None) -> Sketch:
    """Return the sketch of one round of phases over these points."""
    n_features = points.shape[1]
    nano = round(epsilon * 1e9)
    encoding = waves_for(n_features, None, n_waves, nano, seed, lengths)
    spec = RoundSpec(features(n_features), encoding, design("window", encoding.phases, nano))
    return sketch_of(encoding, spec.mechanism, Devices(points, seed)(spec).tally)
