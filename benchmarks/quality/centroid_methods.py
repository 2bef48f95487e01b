"""Which methods find centroids: one line each in `TABLE`. A plan is timed apart from its devices."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from benchmarks.quality.centroid_scores import nearest
from clustering.fuzzy import Rule
from clustering.plan import Collected, drive
from clustering.reference import fcm as reference
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import lattice_places
from sfumato.mechanisms import discrete_laplace, perturb_many
from sfumato.specs import LOCAL_ALGORITHMS, Algorithm, DiscreteLaplaceMechanism, Distance, Feature, NoisyFcm, RoundSpec

Kind = Literal["ours", "paper", "comparator", "open"]
TO_4, ANY = 4, 64  # features
K_MEANS_POINTS = 20_000

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Found:
    """What a run brought.

    Attributes
    ----------
    centres : ndarray of shape (c, d)
        In [0, 1].
    labels : ndarray of shape (n,), int64
        What devices label their true points.
    seconds : float
        CPU time of the server.
    device_seconds : float
        CPU time of all devices together.
    array : ndarray of shape (n, d), optional
        What the server worked on where methods add noise alone: noisy vectors, in the points' own
        unit, in any order.
    reports : ndarray of shape (n, d), optional
        A noisy vector for each point, by the same mechanism.
    rule : Rule, optional
        Of fuzzy methods: what their steps minimise.
    """

    centres: Points
    labels: Labels
    seconds: float
    device_seconds: float = 0.0
    array: Points | None = None
    reports: Points | None = None
    rule: Rule | None = None


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes
    ----------
    name : str
    kind : {'ours', 'paper', 'comparator', 'open'}
        `open` is not private; `paper` is paper 004's, made sound, in its variants.
    module : str
        Rows are made anew when this module, or one of the room it imports, has changed.
    run : callable
        (points, epsilon, clusters, seed) to what it found.
    most_features : int
    """

    name: str
    kind: Kind
    module: str
    run: Callable[[Points, float, int, int], Found]
    most_features: int = ANY


def run_plan(params: Algorithm, points: Points, seed: int) -> tuple[ClusterModel, Found]:
    """`simulate(params, points, seed=seed)`, bit for bit, with the devices' time apart from the server's."""
    features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(points.shape[1]))
    entropy = SeededEntropy(seed)
    draws = entropy.words(len(points))
    devices = _Devices(points, entropy, draws)
    began = time.process_time()
    model = drive(start(params, features, len(points)), devices.answer)
    seconds = time.process_time() - began - devices.seconds
    labels = model.assign(points)
    assert model.centroids is not None  # label maps publish them too
    rule = None
    if isinstance(params, NoisyFcm):
        rule = Rule(params.distance, params.m, model.diagnostics["sigma0"])
    return model, Found(model.centroids, labels, seconds, devices.seconds, devices.array, devices.reports(seed), rule)


@dataclass(eq=False)
class _Devices:
    points: Points
    entropy: SeededEntropy
    draws: NDArray[np.uint64]
    seconds: float = 0.0
    vectors: Collected | None = field(default=None)

    def answer(self, spec: RoundSpec) -> Collected:
        began = time.process_time()
        collected = collect(spec, self.points, self.entropy, self.draws)
        self.seconds += time.process_time() - began
        if isinstance(spec.mechanism, DiscreteLaplaceMechanism):
            self.vectors = collected
        return collected

    @property
    def array(self) -> Points | None:
        if self.vectors is None or not isinstance(self.vectors.spec.mechanism, DiscreteLaplaceMechanism):
            return None
        return self.vectors.sample.values / self.vectors.spec.mechanism.steps

    def reports(self, seed: int) -> Points | None:
        """Vectors drawn anew for every point: a tally's sample does not tell whose they are."""
        if self.vectors is None or not isinstance(self.vectors.spec.mechanism, DiscreteLaplaceMechanism):
            return None
        mechanism = self.vectors.spec.mechanism
        values = perturb_many(mechanism, lattice_places(self.points, mechanism.steps), SeededEntropy(seed + 1))
        return discrete_laplace.vectors_of(mechanism, values) / mechanism.steps


def _plan(
    tag: str, kind: Kind = "ours", *, name: str = "", module: str = "", most_features: int = ANY, **settings: Any
) -> Method:
    """A plan of the product; a plan that has public seeds takes the run's."""
    params: Callable[..., Algorithm] = LOCAL_ALGORITHMS[tag]
    takes_seed = "seed" in getattr(params, "__dataclass_fields__", {})

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Found:
        seeds = {"seed": seed} if takes_seed else {}
        return run_plan(params(epsilon=epsilon, clusters=clusters, **seeds, **settings), points, seed)[1]

    return Method(name or tag, kind, module or f"clustering.plans.{tag}", run, most_features)


def _vectors(
    name: str, of: Callable[[Points, int, float, int], Points], share: float = 1.0, *, keeps_devices: bool = False
) -> Method:
    """A comparator over vectors sent once, at a share of epsilon, with the entropy of the run's seed.

    `keeps_devices`: devices' later answers cannot be told from the server's time.
    """

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Found:
        began = time.process_time()
        sent = reference.send_vectors(points, epsilon * share, SeededEntropy(seed)).points  # as `of` sends them
        sending = time.process_time() - began
        began = time.process_time()
        centres = of(points, clusters, epsilon, seed)
        seconds = time.process_time() - began - (0.0 if keeps_devices else sending)
        return Found(centres, nearest(points, centres), seconds, sending, sent, sent)

    return Method(name, "comparator", reference.__name__, run)


def _open(name: str, of: Callable[[Points, int, int], Points]) -> Method:
    """A method on the true points: no privacy."""

    def run(points: Points, _epsilon: float, clusters: int, seed: int) -> Found:
        began = time.process_time()
        centres = of(points, clusters, seed)
        return Found(centres, nearest(points, centres), time.process_time() - began)

    return Method(name, "open", reference.__name__, run)


def _mean(points: Points, clusters: int, _seed: int) -> Points:
    return np.repeat(points.mean(axis=0, keepdims=True), clusters, axis=0)


def k_means(points: Points, clusters: int, seed: int) -> Points:
    """Non-private k-means that is hard to beat: the best of ten greedy starts on 20,000 points, then on all."""
    few = points[:K_MEANS_POINTS]
    start = KMeans(clusters, n_init=10, random_state=seed).fit(few).cluster_centers_
    fitted = KMeans(clusters, init=start, n_init=1).fit(points)
    return np.asarray(fitted.cluster_centers_, dtype=np.float64)


def _noise_em(points: Points, clusters: int, epsilon: float, seed: int) -> Points:
    return reference.noise_em(points, clusters, epsilon, seed=seed).centres


SHORT: Mapping[Distance, str] = {  # the paper's names
    "mixed": "MixDis",
    "gaussian": "GauDis",
    "laplace": "LapDis",
    "euclidean": "EucDis",
    "absolute": "AbsDis",
}
assert set(SHORT) == set(get_args(Distance))
ABLATION: Mapping[str, str] = {
    "noisy_fcm" if distance == "mixed" else f"noisy_fcm {distance}": short for distance, short in SHORT.items()
}
LAPLACE_FCM = "noisy_fcm euclidean"  # Laplace noise, and fuzzy c-means as it is
ONE_ROUND = "phase_sketch (one round)"
FCM, K_MEANS, ONE_CENTRE = "FCM", "k-means", "one centre"

TABLE: tuple[Method, ...] = (
    _plan("phase_sketch"),
    _plan("phase_sketch", name=ONE_ROUND, refine="none"),
    _plan("grid_kmeans", most_features=TO_4),
    _plan("auto", module="clustering.registry"),
    _plan("ldp_kmeans"),
    *(
        _plan("noisy_fcm", "ours" if distance == "mixed" else "paper", name=name, distance=distance)
        for name, distance in zip(ABLATION, SHORT, strict=True)
    ),
    _vectors("PrivKM", lambda points, k, epsilon, seed: reference.priv_km(points, k, epsilon, seed=seed)),
    _vectors("PrivPro", lambda points, k, epsilon, seed: reference.priv_pro(points, k, epsilon, seed=seed)),
    _vectors(
        "PrivDis",
        lambda points, k, epsilon, seed: reference.priv_dis(points, k, epsilon, seed=seed),
        0.5,
        keeps_devices=True,
    ),
    _vectors("noise_em", _noise_em),
    _open(FCM, lambda points, k, seed: reference.fcm(points, k, seed=seed)),
    _open(K_MEANS, k_means),
    _open(ONE_CENTRE, _mean),
)

METHODS: Mapping[str, Method] = {method.name: method for method in TABLE}
