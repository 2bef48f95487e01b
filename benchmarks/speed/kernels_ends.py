"""Rows of `kernels`: whole algorithms, from reports or records to clusters, against peers that see the raw points.

DBSCAN is scikit-learn's: pyclustering's takes thirty times as long at 50,000 points, and longer still at more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score

from benchmarks.reference_shapes import SHAPES
from benchmarks.speed.agreement import Disagreement
from benchmarks.speed.peer import Peer
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.central.run import simulate_central
from clustering.plan import Collected, drive
from clustering.registry import start
from clustering.seeded_entropy import SeededEntropy
from clustering.simulate import simulate
from clustering.tally import count
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import symbols
from sfumato.entropy import below_many
from sfumato.mechanisms import perturb_many
from sfumato.specs import Algorithm, Feature, RoundSpec, ShiftedGrid, UniformGrid
from sfumato.specs.central import DpKmeans

GROUP = "kernels"
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

LEAST_ARI = 0.5  # against the true clusters: what is fast and wrong is no row
SERVER = "the server's part, from the reports as they lie in the log to the model; devices excluded"
WHOLE = "everything, the devices' encoding and perturbing included"


@dataclass(frozen=True)
class Sent:
    """The reports of a plan's one round."""

    spec: RoundSpec
    slots: NDArray[np.int64]
    values: NDArray[np.uint8]


def rows(setting: Setting, peer: Peer) -> Iterator[Row]:
    """Grids against CLIQUE and DBSCAN; private k-means over records."""
    yield from _grids(setting, peer)
    yield _private_k_means(setting, peer)


def _grids(setting: Setting, peer: Peer) -> Iterator[Row]:
    n = 40_000 if setting.quick else 100_000
    (shape,) = (shape for shape in SHAPES if shape.name == "rings")
    points, truth = shape.sample(n, seed=1)
    peer.send("points", points)
    peer.call("list_points", "points")
    radius, neighbours = 0.012, max(5, n // 5_000)
    intervals, threshold = 24, n // 600

    def clique() -> tuple[float, Labels]:
        answer = peer.call("clique", intervals=intervals, threshold=threshold)
        return answer.seconds, answer.value

    def dbscan() -> tuple[float, Labels]:
        found: list[Labels] = []
        took = seconds(lambda: found.append(DBSCAN(eps=radius, min_samples=neighbours, n_jobs=1).fit(points).labels_))
        return took, found[0]

    peers: list[tuple[str, Callable[[], tuple[float, Labels]]]] = [
        (f"pyclustering {peer.version('pyclustering')} CLIQUE", clique),
        (f"scikit-learn {version('scikit-learn')} DBSCAN", dbscan),
    ]
    for name, run in peers:
        _check(name, run()[1], truth)
    for params in (
        UniformGrid(epsilon=4.0, clusters=shape.n_clusters),
        ShiftedGrid(epsilon=4.0, clusters=shape.n_clusters),
    ):
        sent = reports_of(params, points)
        tag = "UGC (uniform_grid)" if isinstance(params, UniformGrid) else "shifted_grid"
        _check(tag, server(params, sent).assign(points), truth)
        ways: tuple[tuple[str, Callable[[], object]], ...] = (
            (SERVER, lambda params=params, sent=sent: server(params, sent)),  # type: ignore[misc]
            (WHOLE, lambda params=params: simulate(params, points, seed=1)),  # type: ignore[misc]
        )
        for name, run in peers:
            for note, ours in ways:
                part = "from the reports" if note is SERVER else "devices included"
                yield compare(
                    GROUP,
                    f"{tag}, {n:,} people, {part}",
                    name,
                    in_turns(lambda ours=ours: seconds(ours), lambda run=run: run()[0], setting.turns),  # type: ignore[misc]
                    bar=1.0,
                    note=note,
                )


def _check(name: str, labels: Labels, truth: Labels) -> None:
    score = adjusted_rand_score(truth, labels)
    if score < LEAST_ARI:
        raise Disagreement(f"{name} finds other clusters: an adjusted Rand index of {score:.2f}")


def reports_of(params: Algorithm, points: Floats) -> Sent:
    """What the devices send in the only round of a plan."""
    asked: list[RoundSpec] = []
    plan = start(params, _features(points), len(points))
    asked.append(next(plan))
    plan.close()
    spec, entropy = asked[0], SeededEntropy(1)
    slots = below_many(entropy, spec.encoding.n_slots, len(points))
    return Sent(spec, slots, perturb_many(spec.mechanism, symbols(spec.encoding, points, slots), entropy))


def server(params: Algorithm, sent: Sent) -> ClusterModel:
    """Count, decode, fit."""
    features = sent.spec.features
    return drive(
        start(params, features, len(sent.slots)), lambda spec: Collected(spec, count(spec, sent.slots, sent.values))
    )


def _features(points: Floats) -> tuple[Feature, ...]:
    return tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(points.shape[1]))


def _private_k_means(setting: Setting, peer: Peer) -> Row:
    n, epsilon = 20_000 if setting.quick else 200_000, 1.0
    (shape,) = (shape for shape in SHAPES if shape.name == "blobs8" and shape.n_features == 2)
    points, _ = shape.sample(n, seed=2)
    peer.send("points", points)
    params = DpKmeans(epsilon=epsilon, clusters=shape.n_clusters)

    def ours() -> Floats:
        found = simulate_central(params, points, seed=1).centroids
        assert found is not None
        return found

    def theirs() -> tuple[float, Floats]:
        answer = peer.call("private_k_means", "points", clusters=shape.n_clusters, epsilon=epsilon, seed=1)
        return answer.seconds, answer.value

    left = [
        float(((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).mean()) for centres in (ours(), theirs()[1])
    ]
    if left[0] > left[1]:
        raise Disagreement(f"inertia a record: {left[0]:.4g} here, {left[1]:.4g} there")
    return compare(
        GROUP,
        f"dp_kmeans, {n:,} records, d = 2, k = {shape.n_clusters}, epsilon 1",
        f"diffprivlib {peer.version('diffprivlib')} KMeans",
        in_turns(lambda: seconds(ours), lambda: theirs()[0], setting.turns),
        bar=1.0,
        note="exact integer noise against floats; inertia is no more than the peer's (checked)",
    )
