"""Methods that find centroids: one line each in `METHODS`. The CPU time of devices is kept apart from the server's."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.quality.data import Labels, Points
from benchmarks.quality.reference import fcm as reference
from benchmarks.quality.runs import Kind, Method, by_name
from benchmarks.quality.scores import best_k_means, nearest
from clustering.centroids.fuzzy_cmeans import Rule
from clustering.registry import PLANS, start
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import keeps_vectors, noise_of
from clustering.simulate import SeededEntropy, collect
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import FuzzyMemberships
from sfumato.records.encodings import lattice_places
from sfumato.specs import LOCAL_ALGORITHMS, Algorithm, Feature, RoundSpec

K_MEANS_POINTS = 20_000  # points that starts of k-means are tried on


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a run."""

    centres: Points  # (c, d), in [0, 1]
    labels: Labels  # (n,), which devices give their true points
    seconds: float  # CPU time of the server
    device_seconds: float = 0.0  # CPU time of all devices together
    array: Points | None = None  # noisy vectors that the server works on, in the unit of the points, in any order
    reports: Points | None = None  # a noisy vector for each point, by the same mechanism
    rule: Rule | None = None  # objective of a fuzzy method


# A method runs on (points, epsilon, clusters, seed) and returns `Found`.


def run_plan(params: Algorithm, points: Points, seed: int) -> tuple[ClusterModel, Found]:
    """Return the model of `simulate(params, points, seed=seed)`, bit for bit, with the times of devices and server."""
    features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(points.shape[1]))
    devices = _Devices(points, SeededEntropy(seed))
    began = time.process_time()
    plan = counting_outside(start(params, features, len(points)), opens_counting=False, may_clip=False)
    model = drive(plan, devices.report)
    seconds = time.process_time() - began - devices.seconds
    assert model.centroids is not None  # label maps publish them too
    of = model.soft
    rule = Rule(of.distance, of.m, of.sigma0) if isinstance(of, FuzzyMemberships) else None
    array, reports = devices.vectors(seed)
    return model, Found(model.centroids, model.assign(points), seconds, devices.seconds, array, reports, rule)


class _Devices:
    """Devices that report their points round by round."""

    def __init__(self, points: Points, entropy: SeededEntropy) -> None:
        self._points, self._entropy, self._draws = points, entropy, entropy.words(len(points))
        self._collected: Collected | None = None
        self.seconds = 0.0

    def report(self, spec: RoundSpec) -> Collected:
        """Return the reports of a round."""
        began = time.process_time()
        collected = collect(spec, self._points, self._entropy, self._draws)
        self.seconds += time.process_time() - began
        if keeps_vectors(spec):
            self._collected = collected
        return collected

    def vectors(self, seed: int) -> tuple[Points | None, Points | None]:
        """Return the noisy vectors of the server, and new ones in the order of the points, if any were reported.

        The vectors of the server cannot be matched with points, because a tally's sample hides their senders.
        """
        if self._collected is None:
            return None, None
        mechanism = noise_of(self._collected.spec)
        values = mechanism.perturb_many(lattice_places(self._points, mechanism.steps), SeededEntropy(seed + 1))
        reports = mechanism.vectors_of(values) / mechanism.steps
        return self._collected.sample.values / mechanism.steps, reports


def _plan(
    tag: str, kind: Kind = "ours", *, name: str = "", features: tuple[int, int] = (1, 64), **settings: Any
) -> Method:
    """Return a method that runs an algorithm of the product, with the seed of the run if it takes a public seed."""
    params: Callable[..., Algorithm] = LOCAL_ALGORITHMS[tag]
    takes_seed = "seed" in getattr(params, "__dataclass_fields__", {})

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Found:
        seeds = {"seed": seed} if takes_seed else {}
        return run_plan(params(epsilon=epsilon, clusters=clusters, **seeds, **settings), points, seed)[1]

    return Method(name or tag, kind, PLANS.get(LOCAL_ALGORITHMS[tag], start).__module__, run, features=features)


def _vectors(
    name: str, find: Callable[[Points, int, float, int], Points], share: float = 1.0, *, is_interactive: bool = False
) -> Method:
    """Return a comparator on vectors that devices send once, at a share of epsilon, with the entropy of the run's seed.

    The server time of an interactive comparator includes the later reports of devices.
    """

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Found:
        began = time.process_time()
        sent = reference.send_vectors(points, epsilon * share, SeededEntropy(seed)).points  # `find` sends the same
        sending = time.process_time() - began
        began = time.process_time()
        centres = find(points, clusters, epsilon, seed)
        seconds = time.process_time() - began - (0.0 if is_interactive else sending)
        return Found(centres, nearest(points, centres), seconds, sending, sent, sent)

    return Method(name, "comparator", reference.__name__, run)


def _open(name: str, find: Callable[[Points, int, int], Points]) -> Method:
    """Return a method on the true points, without privacy."""

    def run(points: Points, _epsilon: None, clusters: int, seed: int) -> Found:
        began = time.process_time()
        centres = find(points, clusters, seed)
        return Found(centres, nearest(points, centres), time.process_time() - began)

    return Method(name, "open", reference.__name__, run, takes_epsilon=False)


def _mean(points: Points, clusters: int, _seed: int) -> Points:
    return np.repeat(points.mean(axis=0, keepdims=True), clusters, axis=0)


def k_means(points: Points, clusters: int, seed: int) -> Points:
    """Return centroids of k-means on all points, from the best of ten greedy starts on 20,000 points."""
    return best_k_means(points, points[:K_MEANS_POINTS], clusters, 10, seed)


OURS, GRID, AUTO, ONE_ROUND = "phase_sketch", "grid_kmeans", "auto", "phase_sketch (one round)"
FCM, K_MEANS, ONE_CENTRE = "FCM", "k-means", "one centre"
FUZZY, LAPLACE_FCM = "noisy_fcm", "noisy_fcm euclidean"  # the latter is Laplace noise, then plain fuzzy c-means
ABLATION: Mapping[str, str] = {  # names of Zhang et al. 2025 by method: one per distance
    FUZZY: "MixDis",
    "noisy_fcm gaussian": "GauDis",
    "noisy_fcm laplace": "LapDis",
    LAPLACE_FCM: "EucDis",
    "noisy_fcm absolute": "AbsDis",
}

METHODS: Mapping[str, Method] = by_name(
    _plan(OURS),
    _plan(OURS, name=ONE_ROUND, refine="none"),
    _plan(GRID, features=(1, 4)),
    _plan(AUTO),
    _plan("ldp_kmeans"),
    _plan(FUZZY),
    *(_plan(FUZZY, "paper", name=name, distance=name.split()[1]) for name in ABLATION if name != FUZZY),
    _vectors("PrivKM", reference.priv_km),
    _vectors("PrivPro", reference.priv_pro),
    _vectors("PrivDis", reference.priv_dis, 0.5, is_interactive=True),
    _vectors("noise_em", lambda points, k, epsilon, seed: reference.noise_em(points, k, epsilon, seed).centres),
    _open(FCM, reference.fcm),
    _open(K_MEANS, k_means),
    _open(ONE_CENTRE, _mean),
)
