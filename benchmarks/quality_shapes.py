"""How well `shifted_grid` finds three shapes, by reports and epsilon: ``python -m benchmarks.quality_shapes``.

Prints a Markdown table of the adjusted Rand index against the true labels (mean and
standard deviation over seeds), beside the same pipeline on unperturbed symbols.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_blobs, make_circles, make_moons

from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from sfumato.specs import ShiftedGrid

CLUSTERS = {"moons": 2, "aniso": 3, "circles": 2}
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
_SHEAR = np.array([[0.6, -0.6], [-0.4, 0.8]])
_BOUNDS_POINTS, _BOUNDS_SEED = 200_000, 99_999

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


def raw(name: str, n: int, seed: int) -> tuple[Points, Labels]:
    """Draw a set in its own units."""
    if name == "circles":
        points, labels = make_circles(n, factor=0.5, noise=0.05, random_state=seed)
    elif name == "moons":
        points, labels = make_moons(n, noise=0.05, random_state=seed)
    else:
        _, _, centres = make_blobs(10, centers=3, random_state=170, return_centers=True)
        points, labels = make_blobs(n, centers=centres, random_state=seed)
        points = points @ _SHEAR
    return points, labels


def bounds(name: str) -> tuple[Points, Points]:
    """Public bounds: the range of another draw, widened by 2 % a side."""
    points, _ = raw(name, _BOUNDS_POINTS, _BOUNDS_SEED)
    lower, upper = points.min(axis=0), points.max(axis=0)
    margin = 0.02 * (upper - lower)
    return lower - margin, upper + margin


def score(name: str, n: int, seed: int, limits: tuple[Points, Points], **how: Any) -> float:
    """ARI of one run; `how` is `epsilon` and, for the ceiling, `perturb=False`."""
    points, labels = raw(name, n, seed)
    lower, upper = limits
    scaled = ((points - lower) / (upper - lower)).clip(0, 1)
    params = ShiftedGrid(epsilon=how.pop("epsilon"), clusters=CLUSTERS[name])
    model = simulate(params, scaled, seed=seed, **how)
    return adjusted_rand_index(model.assign(scaled), labels)


def cell(scores: Sequence[float]) -> str:
    """A table cell: mean and standard deviation."""
    return f"{np.mean(scores):.2f} ± {np.std(scores):.2f}"


def table(sizes: Sequence[int], epsilons: Sequence[float], seeds: int) -> None:
    """Measure and print, a row at a time."""
    names = [f"ε={epsilon:g}" for epsilon in epsilons]
    print("| reports | set | " + " | ".join(names) + f" | unperturbed (grid of ε={epsilons[-1]:g}) |")
    print("|---:|---|" + "---:|" * (len(names) + 1))
    for n in sizes:
        for name in CLUSTERS:
            limits = bounds(name)
            cells = [
                cell([score(name, n, seed, limits, epsilon=epsilon) for seed in range(seeds)]) for epsilon in epsilons
            ]
            cells.append(
                cell([score(name, n, seed, limits, epsilon=epsilons[-1], perturb=False) for seed in range(seeds)])
            )
            print(f"| {n:,} | {name} | " + " | ".join(cells) + " |", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="15,000 reports, two seeds, epsilon 1 and 4")
    parser.add_argument("--full", action="store_true", help="a million reports as well")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    if options.quick:
        table((15_000,), (1.0, 4.0), 2)
    else:
        table((15_000, 150_000, 1_000_000) if options.full else (15_000, 150_000), EPSILONS, 5)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
