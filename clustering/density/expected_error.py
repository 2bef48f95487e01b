"""Expected label error of a method due to noise, by a parametric bootstrap on synthetic rounds."""

from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clustering.density.synthetic_rounds import SyntheticPopulation
from clustering.matching import match, on_grid
from clustering.rounds.plan import Collected
from sfumato.specs import RoundSpec

T = TypeVar("T")

CollectRound = Callable[[RoundSpec, int], Collected]  # collects a round, given its index
Relabel = Callable[[CollectRound], NDArray[np.int64]]

MAX_THROWS = 4
_WORK = 1 << 14  # cells of all throws together; larger grids get fewer throws, at least two


def expected_error(relabel: Relabel, density: NDArray[np.float64], reports: tuple[int, ...] | int) -> float:
    """Return the expected share of the population with a label that changes because reports are perturbed.

    A synthetic population is sampled from the released density. The method labels the map once
    from unperturbed reports, and several times from perturbed reports with different random
    numbers. The result is the mean mass with two different labels under the best one-to-one
    matching of clusters. A cluster in only one of the two maps counts as different.
    The value measures noise only. It excludes errors the method makes without noise, and
    structure that noise hides from the released density.

    Parameters
    ----------
    relabel : callable
        Run the method and return its label map, given a function that collects its rounds.
    density : ndarray
        Released density, sums to one.
    reports : tuple of int, or int
        Number of reports of each round, or the population size. In the second case each round
        gets the share of its participation.

    Returns
    -------
    float
        Share in [0, 1].
    """
    people = SyntheticPopulation(density, reports)
    return mean_disagreement(lambda coins: relabel(_perturb(people, coins)), density)


def mean_disagreement(relabel: Callable[[int | None], NDArray[np.int64]], density: NDArray[np.float64]) -> float:
    """Return the mean disagreement between the map without noise (None) and the maps with noise (0, 1, ..)."""
    unperturbed = relabel(None)
    n_throws = min(MAX_THROWS, max(2, _WORK // density.size))
    return float(np.mean([disagreement(unperturbed, relabel(throw), density) for throw in range(n_throws)]))


def rerun(rounds: Generator[RoundSpec, Collected, T], collect: CollectRound) -> T:
    """Run rounds and return their result. Collect each round by its index."""
    index = 0
    try:
        spec = next(rounds)
        while True:
            spec = rounds.send(collect(spec, index))
            index += 1
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        rounds.close()


def _perturb(people: SyntheticPopulation, coins: int | None) -> CollectRound:
    return lambda spec, index: people.collect(spec, index, coins)


def disagreement(one: NDArray[np.int64], other: NDArray[np.int64], density: NDArray[np.float64]) -> float:
    """Return the mass with different labels under the best one-to-one matching of two maps' labels.

    Parameters
    ----------
    one, other : ndarray with as many axes as the density, int64
        Label maps over the same box, 0 .. n-1.
    density : ndarray
        Sums to one. Its mass is placed at the centres of its cells.

    Returns
    -------
    float
        Share in [0, 1].
    """
    a, b = (on_grid(labels, density.shape).ravel() for labels in (one, other))
    table = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(table, (a, b), density.ravel())
    together = np.sum([table[pair] for pair in match(table)])
    return float(np.clip(1 - together / table.sum(), 0.0, 1.0))
