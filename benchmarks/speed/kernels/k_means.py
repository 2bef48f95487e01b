"""Kernels on one thread each, against other libraries; both results must agree before they are timed.

Ours and scikit-learn run in this process, the other peers in a Python of their own. Only the row with `TWO THREADS` is
threaded: threadpoolctl limits the libraries of this process to one thread, environment variables limit the peers.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans, kmeans_plusplus
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.peers.peer import Peer
from benchmarks.reference_shapes import blobs
from benchmarks.speed.harness.measurement import (
    Disagreement,
    Measurement,
    Setting,
    agree,
    alternate,
    compare,
    race,
    seconds,
)
from benchmarks.speed.kernels import algorithms, decoding
from clustering.centroids.fuzzy_cmeans import Rule, fuzzy_c_means
from clustering.centroids.weighted_kmeans import MAX_STEPS, RESTARTS, TRIALS, choose_seeds, lloyd
from clustering.kernels.kmeans import measure_inertia, weighted_lloyd_step
from clustering.random import PublicWords

Floats = NDArray[np.float64]

STEPS = 10  # iterations of a row of fuzzy c-means, or of Lloyd's steps
STEPS_AGREE = 0.01  # share of the largest coordinate: rounding of single precision moves points between clusters
STEP_PEERS = ("scikit-learn-intelex", "faiss-cpu", "superkmeans")  # besides scikit-learn

SAME = "same centroids at the start, same weighted points, same inertia (within 1e-6), at most 50 steps"


@dataclass(frozen=True)
class Case:
    """A size of the k-means problem."""

    n_points: int
    n_features: int
    n_clusters: int
    width: float

    @property
    def name(self) -> str:
        """Return the size as text."""
        return f"{self.n_points:,} points, d = {self.n_features}, k = {self.n_clusters}"

    def sample(self) -> tuple[Floats, Floats, Floats]:
        """Return points, weights, and initial centroids among the points."""
        draw = blobs(self.n_clusters, self.n_features, width=self.width)
        points, _ = draw(self.n_points, np.random.default_rng(1), np.random.default_rng(2))
        points = np.ascontiguousarray(points)
        weights = np.random.default_rng(3).random(self.n_points)
        return points, weights, choose_seeds(points, weights, self.n_clusters, PublicWords(4))


def cases(quick: bool) -> tuple[Case, ...]:
    """Return cases with few, some and many features; the last favours matrix products."""
    n = 20_000 if quick else 200_000
    return Case(n, 2, 16, 0.05), Case(n, 8, 16, 0.12), Case(n // 2, 16, 64, 0.2)


def wide_case(quick: bool) -> Case:
    """Return the case with many features and centroids, where the seeds of the peer are matrix products."""
    return Case(5_000, 64, 64, 0.3) if quick else Case(20_000, 64, 256, 0.3)


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield all rows, those of slow peers last."""
    with threadpool_limits(1):
        for case in cases(setting.quick):
            yield from _k_means(setting, case)
        yield _seeds(setting, wide_case(setting.quick))
        yield _mini_batch(setting, cases(setting.quick)[1])
        with Peer() as peer:
            yield from _steps(setting, peer)
            yield from _fuzzy(setting, peer)
            yield from algorithms.rows(setting, peer)
            yield from decoding.rows(setting, peer)
    yield _two_threads(setting, cases(setting.quick)[1])


def step_cases(quick: bool) -> Iterator[Case]:
    """Yield cases of few to many features and records."""
    for n in (10_000,) if quick else (10_000, 100_000, 1_000_000):
        yield from (Case(n, 2, 16, 0.05), Case(n, 8, 16, 0.12), Case(n, 64, 32, 0.3))
    for n in (5_000,) if quick else (10_000, 50_000):
        yield Case(n, 768, 20, 0.3)


def _steps(setting: Setting, peer: Peer) -> Iterator[Measurement]:
    """Compare ten steps of Lloyd with the fastest of four libraries, which compute in single precision."""
    for case in step_cases(setting.quick):
        setting.progress(f"  kernels: {STEPS} steps of Lloyd, {case.name}")
        points, _, start = case.sample()
        weights, single = np.ones(len(points)), points.astype(np.float32)
        peer.send("points", single)
        peer.send("start", start.astype(np.float32))

        def ours(points: Floats = points, weights: Floats = weights, centres: Floats = start) -> Floats:
            for _ in range(STEPS):
                _, centres = _step(points, weights, centres)
            return centres

        def here(points: Any = single, start: Floats = start) -> float:
            fit = KMeans(len(start), init=start.astype(np.float32), n_init=1, max_iter=STEPS, tol=0.0)
            return seconds(lambda: fit.fit(points)) * STEPS / float(fit.n_iter_)

        expected = ours()
        libraries: dict[str, Callable[[], float]] = {SKLEARN: here}
        for each in STEP_PEERS:
            libraries[f"{each} {peer.version(each)}"] = partial(_seconds_there, peer, each, expected)
        times = {name: min(measure() for _ in range(2)) for name, measure in libraries.items()}
        fastest = min(times, key=lambda name: times[name])
        yield compare(
            f"{STEPS} steps of Lloyd, {case.name}",
            f"the fastest: {fastest}",
            alternate(partial(seconds, ours), libraries[fastest], min(setting.turns, 3)),
            bar=1.0,
            note="; ".join(f"{name} {1000 * time:.3g} ms" for name, time in times.items()),
        )


def _seconds_there(peer: Peer, package: str, expected: Floats) -> float:
    """Return the seconds of ten steps of a peer, which may stop after fewer."""
    result = peer.call("k_means", "points", "start", steps=STEPS, library=package)
    centres, n_steps = result.value
    if package != "superkmeans":
        agree("centres", expected, centres, STEPS_AGREE)
    return result.seconds * STEPS / int(n_steps)


SKLEARN = f"scikit-learn {sklearn.__version__}"


def _k_means(setting: Setting, case: Case) -> Iterator[Measurement]:
    """Yield Lloyd's steps against both algorithms of the peer, then the seeds."""
    points, weights, start = case.sample()
    fit = lloyd(points, weights, start)
    for algorithm in ("lloyd", "elkan"):
        peer = KMeans(len(start), init=start, n_init=1, max_iter=MAX_STEPS, tol=0.0, algorithm=algorithm)
        theirs = partial(peer.fit, points, sample_weight=weights)
        agree("inertia", fit.inertia, theirs().inertia_, 1e-6)
        name, reference = f"weighted Lloyd, {case.name}", f"{SKLEARN} KMeans ({algorithm})"
        yield race(name, reference, lambda: lloyd(points, weights, start), theirs, setting.turns, note=SAME)
    yield _seeds(setting, case)


def _seeds(setting: Setting, case: Case) -> Measurement:
    points, weights, _ = case.sample()
    k, numbers = case.n_clusters, range(8)

    def ours(number: int = 0) -> Floats:
        return choose_seeds(points, weights, k, PublicWords(number))

    def theirs(number: int = 0) -> Floats:
        found = kmeans_plusplus(points, k, sample_weight=weights, n_local_trials=TRIALS, random_state=number)
        return np.asarray(found[0], dtype=np.float64)

    means = [np.mean([_inertia(points, weights, find(number)) for number in numbers]) for find in (ours, theirs)]
    agree("inertia of the seeds", means[0], means[1], 0.2)
    note = f"greedy, {TRIALS} trials a seed both; mean inertia over eight starts within 20 %"
    return race(f"k-means++ seeds, {case.name}", f"{SKLEARN} kmeans_plusplus", ours, theirs, setting.turns, note=note)


def _mini_batch(setting: Setting, case: Case) -> Measurement:
    """Compare seeds and steps, until they reach the inertia of the peer, with mini-batches."""
    points, weights, _ = case.sample()

    def theirs() -> MiniBatchKMeans:
        return MiniBatchKMeans(case.n_clusters, n_init=1, random_state=0).fit(points, sample_weight=weights)

    goal = _inertia(points, weights, theirs().cluster_centers_)

    def ours() -> float:
        for number in range(RESTARTS):
            centres = choose_seeds(points, weights, case.n_clusters, PublicWords(number))
            last_inertia = np.inf
            for _ in range(MAX_STEPS):
                labels, after = _step(points, weights, centres)
                inertia = float(measure_inertia(points, weights, centres, labels))
                if inertia <= goal:
                    return inertia
                if inertia == last_inertia:
                    break
                centres, last_inertia = after, inertia
        raise Disagreement(f"inertia: none of {RESTARTS} starts comes to the {goal:.6g} there")

    ours()
    note = "k-means++ and Lloyd's steps, start after start, to the peer's inertia; the peer stops by its own rule"
    name = f"k-means to its inertia, {case.name}"
    return race(name, f"{SKLEARN} MiniBatchKMeans", ours, theirs, setting.turns, note=note)


def _step(points: Floats, weights: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the labels of points, and the next centroids."""
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(len(centres))
    weighted_lloyd_step(points, weights, np.ascontiguousarray(centres), labels, sums, masses)
    return labels, np.divide(sums, masses[:, None], out=centres.copy(), where=masses[:, None] > 0)


def _inertia(points: Floats, weights: Floats, centres: Floats) -> float:
    """Return the weighted sum of squared distances to the nearest centroids."""
    labels, _ = _step(points, weights, centres)
    return float(measure_inertia(points, weights, np.ascontiguousarray(centres), labels))


def _two_threads(setting: Setting, case: Case) -> Measurement:
    """Compare two starts: ours one per core, the peer one after the other with two threads."""
    points, weights, _ = case.sample()
    starts = [choose_seeds(points, weights, case.n_clusters, PublicWords(number)) for number in (1, 2)]

    def ours() -> float:
        with ThreadPoolExecutor(2) as pool:
            return min(fit.inertia for fit in pool.map(lambda start: lloyd(points, weights, start), starts))

    def theirs() -> float:
        with threadpool_limits(2):
            peers = [KMeans(len(start), init=start, n_init=1, max_iter=MAX_STEPS, tol=0.0) for start in starts]
            return min(float(peer.fit(points, sample_weight=weights).inertia_) for peer in peers)

    agree("inertia", ours(), theirs(), 1e-6)
    name = f"weighted Lloyd, TWO THREADS, two starts, {case.name}"
    return race(name, f"{SKLEARN} KMeans (lloyd), two threads", ours, theirs, setting.turns, note=SAME)


def _fuzzy(setting: Setting, peer: Peer) -> Iterator[Measurement]:
    """Compare fuzzy c-means with squared Euclidean distances and m = 2, from given memberships."""
    sizes = (20_000, 20_000) if setting.quick else (200_000, 100_000)
    for case in (Case(sizes[0], 2, 8, 0.1), Case(sizes[1], 8, 16, 0.1)):
        n, d, k = case.n_points, case.n_features, case.n_clusters
        points, _, _ = case.sample()
        shares = np.random.default_rng(5).random((k, n))
        shares /= shares.sum(axis=0)
        start = shares**2 @ points / (shares**2).sum(axis=1)[:, None]
        peer.send("columns", np.ascontiguousarray(points.T))
        peer.send("shares", shares)
        ours = partial(fuzzy_c_means, points, start, Rule("euclidean"), tolerance=-1.0)
        theirs = partial(peer.call, "c_means", "columns", "shares", clusters=k, steps=STEPS)
        agree("centres", ours(max_iterations=STEPS - 1).centres, theirs().value, 1e-6)
        ours = partial(ours, max_iterations=STEPS)
        yield compare(
            f"fuzzy c-means, {n:,} points, d = {d}, c = {k}",
            f"scikit-fuzzy {peer.version('scikit-fuzzy')} cmeans",
            alternate(partial(seconds, ours), lambda theirs=theirs: theirs().seconds, setting.turns),  # type: ignore[misc]
            bar=5.0,
            note=f"{STEPS} steps, m = 2; the peer starts from memberships, ours from their centroids",
        )
