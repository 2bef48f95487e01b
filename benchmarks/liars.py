"""Measure what false reports do to the defaults: `python -m benchmarks.liars` prints what docs/privacy.md states.

A share of the devices is malicious. Such a device sends one well-formed report in each round, with a random slot, and
does not perturb it. A random report has a uniform symbol. A targeted report has the symbol of one point that is far
from the data, so that a cluster appears there. It has the greatest gain of all reports for that symbol: each one counts
as 1 / (p - q) devices. All other devices are honest, and the number of reports is the same.

The false mass is the published share of the target's cluster less the share of honest points in it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference_shapes import Labels, Points, Shape, blobs
from clustering.metrics import adjusted_rand_index
from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.plan import Collected, drive
from clustering.simulate import collect
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.privacy.entropy import below_many
from sfumato.records.encodings import symbols
from sfumato.specs import (
    Algorithm,
    Feature,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    PhaseSketch,
    RoundSpec,
    ShiftedGrid,
    SsMechanism,
)

Attack = Literal["none", "random", "targeted"]

N_REPORTS = 100_000
SEEDS = 3
EPSILONS = (1.0, 4.0)
CASES: tuple[tuple[Attack, float], ...] = (
    ("none", 0.0), ("random", 0.01), ("random", 0.05), ("targeted", 0.01), ("targeted", 0.05),
)  # fmt: skip
PLANS: tuple[tuple[str, type[Any], bool, int], ...] = (  # title, algorithm, whether K is given, number of features
    ("shifted_grid, K given", ShiftedGrid, True, 2),
    ("shifted_grid", ShiftedGrid, False, 2),
    ("grid_kmeans", GridKmeans, True, 2),
    ("ldp_kmeans", LdpKmeans, True, 2),
    ("phase_sketch, K given", PhaseSketch, True, 6),
    ("phase_sketch", PhaseSketch, False, 6),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    ari: float  # agreement over the honest points
    n_clusters: int
    false_mass: float
    verdict: str


def find_target(points: Points, rng: np.random.Generator) -> Points:
    """Return the one of 500 random points that is farthest from a sample of the data."""
    tried = rng.random((500, points.shape[1]))
    sample = points[rng.integers(0, len(points), 500)]
    gaps = ((tried[:, None] - sample) ** 2).sum(axis=2).min(axis=1)
    return np.asarray(tried[[gaps.argmax()]])


def lie(spec: RoundSpec, target: Points | None, n: int, entropy: SeededEntropy) -> Collected:
    """Return the tally of n malicious devices: targeted reports, or random ones without a target."""
    slots = below_many(entropy, spec.encoding.n_slots, n)
    if target is None:
        own = below_many(entropy, spec.encoding.n_symbols, n)
    else:
        own = symbols(spec.encoding, np.repeat(target, n, axis=0), slots)
    mechanism = spec.mechanism
    if isinstance(mechanism, SsMechanism):
        values = replace(mechanism, hold_threshold=DRAW_SPAN - 1).perturb_many(own, entropy)
    else:  # numbers, as those of randomised response
        values = GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN).perturb_many(own, entropy)
    counting = RoundAggregator(spec)
    counting.add(slots, values)
    return Collected(spec, counting.result())


def run(params: Algorithm, points: Points, labels: Labels, attack: Attack, share: float, seed: int) -> Outcome:
    """Run an algorithm over the points, the first of which are malicious devices."""
    n_false = round(share * len(points))
    honest, entropy = points[n_false:], SeededEntropy(seed)
    target = find_target(points, np.random.default_rng(seed))
    draws = entropy.words(len(points))

    def answer(spec: RoundSpec) -> Collected:
        collected = collect(spec, honest, entropy, draws[n_false:])
        taking = int(_participates(spec, draws[:n_false]).sum())
        if not taking:
            return collected
        false = lie(spec, target if attack == "targeted" else None, taking, entropy)
        return Collected(spec, collected.tally + false.tally)

    features = tuple(Feature(f"x{i}", 0, 1) for i in range(points.shape[1]))
    model = drive(start(params, features, len(points)), answer)
    own = model.assign(honest)
    cluster = int(model.assign(target)[0])
    false_mass = float(model.sizes[cluster]) - float(np.mean(own == cluster))
    return Outcome(adjusted_rand_index(own, labels[n_false:]), model.n_clusters, false_mass, str(model.verdict.value))


def _participates(spec: RoundSpec, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    lo, hi = spec.participation.lo, spec.participation.hi
    return (draws >= np.uint64(lo)) & (draws <= np.uint64(hi - 1))


def rows(n: int, seeds: int) -> Iterator[str]:
    """Yield the table as Markdown, with means over seeds."""
    yield "| algorithm | ε | attack | malicious | ARI | clusters | false mass | not doubtful |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    for title, kind, given, n_features in PLANS:
        shape = SHAPES[n_features]
        for epsilon in EPSILONS:
            params = kind(epsilon, shape.n_clusters) if given else kind(epsilon)
            for attack, share in CASES:
                found = [run(params, *shape.sample(n, seed), attack, share, seed) for seed in range(seeds)]
                means = [
                    np.mean([getattr(each, name) for each in found]) for name in ("ari", "n_clusters", "false_mass")
                ]
                sure = sum(each.verdict != "doubtful" for each in found)
                yield (
                    f"| {title} | {epsilon:g} | {attack} | {share:.0%} | {means[0]:.2f} | {means[1]:.1f} | "
                    f"{means[2]:+.3f} | {sure}/{seeds} |"
                )


SHAPES = {
    2: Shape("unequal5", 2, 5, blobs(5, 2, width=0.045, unequal=True)),
    6: Shape("unequal8", 6, 8, blobs(8, 6, width=0.09, unequal=True)),
}  # key: number of features


def main(arguments: Sequence[str]) -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=N_REPORTS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    for row in rows(options.reports, options.seeds):
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
