"""Every central algorithm, replayed over neighbours: see `audit.replay`."""

from collections.abc import Iterable, Sequence

from audit.check import Check, Effort, Finding, Setting
from audit.neighbours import Pair, pairs
from audit.replay import Method, Replays
from clustering.central.run import run
from sfumato.specs import (
    Auto,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    GatedGridKmeans,
)

FEATURES = (1, 2, 5, 12)
REPEATS = {Effort.QUICK: 2, Effort.FULL: 10, Effort.NIGHTLY: 100}

METHODS: tuple[Method, ...] = (
    Method("dp_kmeans", DpKmeans(1.0, 2, iterations=3), run),
    Method("dp_kmeans, halving", DpKmeans(4.0, 5, budget="halving", iterations=3), run),
    Method("dp_kmeans, plusplus", DpKmeans(2.0, 3, init="plusplus", iterations=2), run),
    Method("dp_kmeans, plusplus, halving", DpKmeans(8.0, 12, "plusplus", "halving", iterations=2), run),
    Method("dp_kmeans, subsets", DpKmeans(1.0, 3, init="subsets", iterations=2), run),
    Method("dp_kmeans, subsets, halving", DpKmeans(16.0, 8, init="subsets", budget="halving", iterations=2), run),
    Method("dp_bisecting_kmeans", DpBisectingKmeans(2.0, 3), run),
    Method("dp_bisecting_kmeans, total_sse", DpBisectingKmeans(16.0, 5, split="total_sse", iterations=1), run),
    Method("dp_bisecting_kmeans, synopsis", DpBisectingKmeans(4.0, 3, synopsis=True), run),
    Method("dp_bisecting_kmeans, synopsis, total_sse", DpBisectingKmeans(8.0, 4, "total_sse", synopsis=True), run),
    Method("dp_uniform_grid_kmeans", DpUniformGridKmeans(4.0, 3), run),
    Method("dp_uniform_grid_kmeans, cells", DpUniformGridKmeans(0.5, 2, cells=2), run),
    Method("dp_quadtree_kmeans", DpQuadtreeKmeans(4.0, 3), run),
    Method("dp_quadtree_kmeans, height", DpQuadtreeKmeans(8.0, 3, height=4), run),
    Method("dp_density_peaks", DpDensityPeaks(8.0, 3), run),
    Method("gated_grid_kmeans", GatedGridKmeans(4.0, 3), run),
    Method("gated_grid_kmeans, quiet", GatedGridKmeans(32.0, 2), run),
    Method("gated_grid_kmeans, delta", GatedGridKmeans(16.0, 2, delta=1e-3), run),
    Method("gated_grid_kmeans, delta, one mean", GatedGridKmeans(4.0, 2, delta=1e-3), run),
    Method("auto", Auto(2.0, 3), run),
)


def replayed(method: Method, setting: Setting, over: Iterable[Pair] | None = None) -> Sequence[Finding]:
    """Replay a method over pairs of neighbours, by default all of them in every number of features."""
    replays = Replays(method)
    chosen = [pair for d in FEATURES for pair in pairs(d)] if over is None else list(over)
    for number in range(REPEATS[setting.effort]):
        for i, pair in enumerate(chosen):
            entropy = setting.entropy(f"replay/{method.name}/{number}/{i}")
            replays.replay(pair, entropy)
    return replays.findings()


def _check(method: Method) -> Check:
    return Check(f"{method.name}, replayed", lambda setting: replayed(method, setting))


CHECKS: tuple[Check, ...] = tuple(_check(method) for method in METHODS)
