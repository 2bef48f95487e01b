"""Whole algorithms, from reports or records to clusters, against peers that see the raw points."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score

from benchmarks.peers.peer import Peer
from benchmarks.reference_shapes import SHAPES
from benchmarks.speed.harness.measurement import Disagreement, Measurement, Setting, alternate, compare, seconds
from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.counting import count
from clustering.rounds.plan import Collected, drive
from clustering.simulate import simulate, simulate_central
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.entropy import below_many
from sfumato.records.encodings import symbols
from sfumato.specs import Algorithm, Feature, RoundSpec, ShiftedGrid, UniformGrid
from sfumato.specs.central import DpKmeans

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

GIVEN_SECONDS, COUNTED_SECONDS = 0.1, 0.3  # bars of a map of 100,000 reports, with K given and counted
MIN_ARI = 0.5  # against the true clusters; a worse result is not timed
SERVER = "the server's part, from the reports in the log to the model; devices excluded"
WHOLE = "everything, with encoding and perturbation on devices"


@dataclass(frozen=True)
class Sent:
    """The reports of the only round of a plan."""

    spec: RoundSpec
    slots: NDArray[np.int64]
    values: NDArray[np.uint8]


def rows(setting: Setting, peer: Peer) -> Iterator[Measurement]:
    """Yield grids against HDBSCAN and DBSCAN, then private k-means on records."""
    yield from _grids(setting, peer)
    yield _private_k_means(setting, peer)


def _grids(setting: Setting, peer: Peer) -> Iterator[Measurement]:
    n = 40_000 if setting.quick else 100_000
    (shape,) = (shape for shape in SHAPES if shape.name == "rings")
    points, truth = shape.sample(n, seed=1)
    peer.send("points", points)
    radius, neighbours = 0.012, max(5, n // 5_000)
    dbscan = DBSCAN(eps=radius, min_samples=neighbours, n_jobs=1)
    peer.send("few", points[:2_000])
    hdbscan = partial(peer.call, "density_clusters", at_least=n // 100)
    slow = {f"{each} {peer.version(each)}": partial(hdbscan, library=each) for each in ("fast-hdbscan", "hdbscan")}
    _check("DBSCAN", dbscan.fit(points).labels_, truth)
    fast = f"scikit-learn {sklearn.__version__} DBSCAN"
    for tag, params in (
        ("UGC (uniform_grid)", UniformGrid(epsilon=4.0, clusters=shape.n_clusters)),
        ("shifted_grid", ShiftedGrid(epsilon=4.0, clusters=shape.n_clusters)),
    ):
        sent = reports_of(params, points)
        _check(tag, server(params, sent).assign(points), truth)
        part, whole = partial(server, params, sent), partial(simulate, params, points, seed=1)
        for name, ours, note in ((fast, part, SERVER), (fast, whole, WHOLE)):
            measured = alternate(partial(seconds, ours), lambda: seconds(lambda: dbscan.fit(points)), setting.turns)
            step = "from the reports" if ours is part else "devices included"
            yield compare(f"{tag}, {n:,} people, {step}", name, measured, bar=1.0, note=note)
    for name, find in slow.items():
        if setting.quick:
            continue
        find("few")  # loads and compiles
        found, took = find("points"), seconds(whole)
        _check(name, found.value, truth)
        yield compare(f"{tag}, {n:,} people, devices included", name, ([took], [found.seconds]), bar=1.0, note=WHOLE)
    for clusters, limit in ((shape.n_clusters, GIVEN_SECONDS), (None, COUNTED_SECONDS)):
        yield _map(setting, ShiftedGrid(epsilon=4.0, clusters=clusters), points, truth, limit)


def _map(setting: Setting, params: ShiftedGrid, points: Floats, truth: Labels, limit: float) -> Measurement:
    """Compare the way from reports to a map with a limit in seconds."""
    sent = reports_of(params, points)
    _check("shifted_grid", server(params, sent).assign(points), truth)
    measured = alternate(lambda: seconds(lambda: server(params, sent)), lambda: limit, setting.turns)
    name = f"shifted_grid, {len(points):,} reports to a map, K {'counted' if params.clusters is None else 'given'}"
    return compare(name, f"the limit of {limit:g} s", measured, bar=1.0, note=SERVER)


def _check(name: str, labels: Labels, truth: Labels) -> None:
    score = adjusted_rand_score(truth, labels)
    if score < MIN_ARI:
        raise Disagreement(f"{name} finds other clusters: an adjusted Rand index of {score:.2f}")


def reports_of(params: Algorithm, points: Floats) -> Sent:
    """Return the reports of devices in the only round of a plan."""
    features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(points.shape[1]))
    spec, entropy = next(start(params, features, len(points))), SeededEntropy(1)
    slots = below_many(entropy, spec.encoding.n_slots, len(points))
    return Sent(spec, slots, spec.mechanism.perturb_many(symbols(spec.encoding, points, slots), entropy))


def server(params: Algorithm, sent: Sent) -> ClusterModel:
    """Return the model of the reports: count, decode and fit."""
    features = sent.spec.features
    return drive(
        start(params, features, len(sent.slots)), lambda spec: Collected(spec, count(spec, sent.slots, sent.values))
    )


def _private_k_means(setting: Setting, peer: Peer) -> Measurement:
    n, epsilon = 20_000 if setting.quick else 200_000, 1.0
    (shape,) = (shape for shape in SHAPES if shape.name == "blobs8" and shape.n_features == 2)
    points, _ = shape.sample(n, seed=2)
    peer.send("points", points)
    params = DpKmeans(epsilon=epsilon, clusters=shape.n_clusters)

    def ours() -> Floats:
        found = simulate_central(params, points, seed=1).centroids
        assert found is not None
        return found

    theirs = partial(peer.call, "private_k_means", "points", clusters=shape.n_clusters, epsilon=epsilon, seed=1)
    left = [float(cdist(points, centres, "sqeuclidean").min(axis=1).mean()) for centres in (ours(), theirs().value)]
    if left[0] > left[1]:
        raise Disagreement(f"inertia a record: {left[0]:.4g} here, {left[1]:.4g} there")
    return compare(
        f"dp_kmeans, {n:,} records, d = 2, k = {shape.n_clusters}, epsilon 1",
        f"diffprivlib {peer.version('diffprivlib')} KMeans",
        alternate(lambda: seconds(ours), lambda: theirs().seconds, setting.turns),
        bar=1.0,
        note="exact integer noise against floats; inertia is no more than the peer's (checked)",
    )
