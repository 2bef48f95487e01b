"""Kernels, one thread each, against the libraries people would take; before a row is timed, both answers must agree.

Ours run in this process, as scikit-learn does; the other peers in a Python of their own. Nothing here is threaded
but the row that says so: the library's threads are held to one by threadpoolctl, the peers' by their environment.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans, kmeans_plusplus
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.reference_shapes import blobs
from benchmarks.speed import before, kernels_decoding, kernels_ends
from benchmarks.speed.agreement import Disagreement, agree
from benchmarks.speed.peer import Peer
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.fuzzy import KINDS, ROUNDING, Rule, fuzzy_c_means
from clustering.kernels.fuzzy import fuzzy_step
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import MAX_STEPS, RESTARTS, TRIALS, lloyd, seeds
from sfumato.specs import Distance

GROUP = "kernels"
FUNCTIONS = Path(__file__).with_name("kernels_peers.py")

Floats = NDArray[np.float64]
Kernel = Callable[..., float]

STEPS = 10  # of a row of before and after: one is done in less than a millisecond

SAME = "from the same centres, over the same weighted points, to the same inertia (within 1e-6), at most 50 steps"


@dataclass(frozen=True)
class Case:
    """Weighted points and centres to start from."""

    n_points: int
    n_features: int
    n_clusters: int
    width: float

    @property
    def name(self) -> str:
        return f"{self.n_points:,} points, d = {self.n_features}, k = {self.n_clusters}"

    def made(self) -> tuple[Floats, Floats, Floats]:
        """Points, weights, and seeds among the points."""
        draw = blobs(self.n_clusters, self.n_features, width=self.width)
        points, _ = draw(self.n_points, np.random.default_rng(1), np.random.default_rng(2))
        points = np.ascontiguousarray(points)
        weights = np.random.default_rng(3).random(self.n_points)
        return points, weights, seeds(points, weights, self.n_clusters, PublicWords(4))


def cases(quick: bool) -> tuple[Case, ...]:
    """Few features, some, and many with many centres, where a matrix product is at its best."""
    n = 20_000 if quick else 200_000
    return Case(n, 2, 16, 0.05), Case(n, 8, 16, 0.12), Case(n // 2, 16, 64, 0.2)


def wide_case(quick: bool) -> Case:
    """Many features and many centres: where seeds are all products of matrices to the peer."""
    return Case(5_000, 64, 64, 0.3) if quick else Case(20_000, 64, 256, 0.3)


def rows(setting: Setting) -> Iterator[Row]:
    """All of them; the slow peers last."""
    with threadpool_limits(1):
        for case in cases(setting.quick):
            yield from _k_means(setting, case)
        yield _seeds(setting, wide_case(setting.quick))
        yield _mini_batch(setting, cases(setting.quick)[1])
        yield from _fuzzy_steps(setting)
        with Peer(FUNCTIONS, threads=1) as peer:
            yield from _fuzzy(setting, peer)
            yield from kernels_ends.rows(setting, peer)
            yield from kernels_decoding.rows(setting, peer)
    yield _two_threads(setting, cases(setting.quick)[1])


def _sklearn() -> str:
    return f"scikit-learn {version('scikit-learn')}"


def _row(
    setting: Setting,
    name: str,
    reference: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    bar: float | None,
    note: str = "",
) -> Row:
    measured = in_turns(lambda: seconds(ours), lambda: seconds(theirs), setting.turns)
    return compare(GROUP, name, reference, measured, bar=bar, note=note)


def _k_means(setting: Setting, case: Case) -> Iterator[Row]:
    """Lloyd's steps against both of the peer's ways, the seeds, and both as they were before."""
    points, weights, start = case.made()
    fit = lloyd(points, weights, start)
    for algorithm in ("lloyd", "elkan"):

        def theirs(algorithm: str = algorithm) -> KMeans:
            peer = KMeans(len(start), init=start, n_init=1, max_iter=MAX_STEPS, tol=0.0, algorithm=algorithm)
            return peer.fit(points, sample_weight=weights)

        agree("inertia", fit.inertia, theirs().inertia_, 1e-6)
        name, peer = f"weighted Lloyd, {case.name}", f"{_sklearn()} KMeans ({algorithm})"
        yield _row(setting, name, peer, lambda: lloyd(points, weights, start), theirs, bar=1.0, note=SAME)

    def step(kernel: Kernel) -> tuple[Floats, float]:
        return _step(points, weights, start, kernel)

    def steps(kernel: Kernel) -> None:
        for _ in range(STEPS):
            step(kernel)

    old, new = before.weighted_lloyd_step, weighted_lloyd_step
    agree("centres", step(new)[0], step(old)[0])
    agree("inertia", step(new)[1], step(old)[1])
    yield _row(
        setting,
        f"{STEPS} steps of weighted Lloyd, {case.name}",
        "before: point by point",
        lambda: steps(new),
        lambda: steps(old),
        bar=1.0,
        note="equal to the last bit",
    )
    yield _seeds(setting, case)
    yield _seeds_before(setting, case)


def _seeds(setting: Setting, case: Case) -> Row:
    points, weights, _ = case.made()
    k, numbers = case.n_clusters, range(8)

    def left(centres: Floats) -> float:
        return _step(points, weights, centres)[1]

    def theirs(number: int) -> Floats:
        found = kmeans_plusplus(points, k, sample_weight=weights, n_local_trials=TRIALS, random_state=number)
        return np.asarray(found[0], dtype=np.float64)

    ours = [left(seeds(points, weights, k, PublicWords(number))) for number in numbers]
    agree("inertia of the seeds", np.mean(ours), np.mean([left(theirs(number)) for number in numbers]), 0.2)
    return _row(
        setting,
        f"k-means++ seeds, {case.name}",
        f"{_sklearn()} kmeans_plusplus",
        lambda: seeds(points, weights, k, PublicWords(0)),
        lambda: theirs(0),
        bar=1.0,
        note=f"greedy, {TRIALS} trials a seed both; mean inertia over eight starts within 20 %",
    )


def _seeds_before(setting: Setting, case: Case) -> Row:
    points, weights, _ = case.made()

    def new() -> Floats:
        return seeds(points, weights, case.n_clusters, PublicWords(0))

    def old() -> Floats:
        return before.seeds(points, weights, case.n_clusters, PublicWords(0), TRIALS)

    agree("seeds", new(), old())
    return _row(
        setting,
        f"k-means++ seeds, {case.name}",
        "before: whole arrays",
        new,
        old,
        bar=1.0,
        note="equal to the last bit",
    )


def _mini_batch(setting: Setting, case: Case) -> Row:
    """Seeds and steps until the peer's inertia is reached."""
    points, weights, _ = case.made()

    def theirs() -> MiniBatchKMeans:
        return MiniBatchKMeans(case.n_clusters, n_init=1, random_state=0).fit(points, sample_weight=weights)

    _, goal = _step(points, weights, theirs().cluster_centers_)

    def ours() -> float:
        for number in range(RESTARTS):
            centres = seeds(points, weights, case.n_clusters, PublicWords(number))
            before_it = np.inf
            for _ in range(MAX_STEPS):
                centres, inertia = _step(points, weights, centres)
                if inertia <= goal:
                    return inertia
                if inertia == before_it:
                    break
                before_it = inertia
        raise Disagreement(f"inertia: none of {RESTARTS} starts comes to the {goal:.6g} there")

    ours()
    note = (
        "k-means++ and Lloyd's steps, start after start, until the peer's inertia is reached; the peer by its own rule"
    )
    return _row(
        setting,
        f"k-means to its inertia, {case.name}",
        f"{_sklearn()} MiniBatchKMeans",
        ours,
        theirs,
        bar=1.0,
        note=note,
    )


def _step(
    points: Floats, weights: Floats, centres: Floats, kernel: Kernel = weighted_lloyd_step
) -> tuple[Floats, float]:
    """The next centres, and the inertia of those given."""
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(len(centres))
    inertia = float(kernel(points, weights, np.ascontiguousarray(centres), labels, sums, masses))
    return np.divide(sums, masses[:, None], out=centres.copy(), where=masses[:, None] > 0), inertia


def _two_threads(setting: Setting, case: Case) -> Row:
    """Two starts on two cores: ours one on each, the peer both of its threads on one after the other."""
    points, weights, _ = case.made()
    starts = [seeds(points, weights, case.n_clusters, PublicWords(number)) for number in (1, 2)]

    def ours() -> float:
        with ThreadPoolExecutor(2) as pool:
            return min(fit.inertia for fit in pool.map(lambda start: lloyd(points, weights, start), starts))

    def theirs() -> float:
        with threadpool_limits(2):
            fits = [
                KMeans(len(start), init=start, n_init=1, max_iter=MAX_STEPS, tol=0.0).fit(points, sample_weight=weights)
                for start in starts
            ]
        return min(float(fit.inertia_) for fit in fits)

    agree("inertia", ours(), theirs(), 1e-6)
    name = f"weighted Lloyd, TWO THREADS, two starts, {case.name}"
    return _row(setting, name, f"{_sklearn()} KMeans (lloyd), two threads", ours, theirs, bar=1.0, note=SAME)


def fuzzy_cases(quick: bool) -> tuple[Case, ...]:
    """Few features and some."""
    return (
        (Case(20_000, 2, 8, 0.1), Case(20_000, 8, 16, 0.1))
        if quick
        else (
            Case(200_000, 2, 8, 0.1),
            Case(100_000, 8, 16, 0.1),
        )
    )


def _fuzzy_steps(setting: Setting) -> Iterator[Row]:
    few, some = fuzzy_cases(setting.quick)
    yield _fuzzy_before(setting, few, "euclidean")
    yield _fuzzy_before(setting, some, "euclidean")
    yield _fuzzy_before(setting, some, "mixed")
    yield _fuzzy_before(setting, some, "absolute")


def _fuzzy_before(setting: Setting, case: Case, distance: Distance) -> Row:
    """Steps as they were, from centres beside the points they were."""
    points, _, _ = case.made()
    centres, sigma = points[: case.n_clusters] + 0.01, 0.05

    def step(kernel: Kernel) -> Floats:
        sums, masses, shares = np.empty_like(centres), np.empty_like(centres), np.empty(case.n_clusters)
        objective = kernel(points, centres, KINDS[distance], 2.0, sigma, ROUNDING * sigma, sums, masses, shares)
        return np.concatenate([[objective], (sums / masses).ravel(), shares])

    def steps(kernel: Kernel) -> None:
        for _ in range(STEPS):
            step(kernel)

    agree("a fuzzy step", step(fuzzy_step), step(before.fuzzy_step), 1e-12)
    return _row(
        setting,
        f"{STEPS} steps of fuzzy c-means, {distance}, {case.name}",
        "before: point by point",
        lambda: steps(fuzzy_step),
        lambda: steps(before.fuzzy_step),
        bar=1.0,
        note="m = 2; objective, centres and shares equal within 1e-12",
    )


def _fuzzy(setting: Setting, peer: Peer) -> Iterator[Row]:
    """Fuzzy c-means with squared Euclidean distances and m = 2, so many steps from given memberships."""
    for case in fuzzy_cases(setting.quick):
        n, d, k = case.n_points, case.n_features, case.n_clusters
        points, _, _ = case.made()
        shares = np.random.default_rng(5).random((k, n))
        shares /= shares.sum(axis=0)
        start = shares**2 @ points / (shares**2).sum(axis=1)[:, None]
        peer.send("columns", np.ascontiguousarray(points.T))
        peer.send("shares", shares)
        rule = Rule("euclidean")

        def ours(n_steps: int, points: Floats = points, start: Floats = start, rule: Rule = rule) -> Floats:
            return fuzzy_c_means(points, start, rule, max_iterations=n_steps, tolerance=-1.0).centres

        def theirs(k: int = k) -> float:
            return peer.call("c_means", "columns", "shares", clusters=k, steps=STEPS).seconds

        agree(
            "centres", ours(STEPS - 1), peer.call("c_means", "columns", "shares", clusters=k, steps=STEPS).value, 1e-6
        )
        yield compare(
            GROUP,
            f"fuzzy c-means, {n:,} points, d = {d}, c = {k}",
            f"scikit-fuzzy {peer.version('scikit-fuzzy')} cmeans",
            in_turns(lambda: seconds(lambda: ours(STEPS)), theirs, setting.turns),
            bar=5.0,
            note=f"{STEPS} steps, m = 2; the peer starts from memberships, ours from the centres they make",
        )
