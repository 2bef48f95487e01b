"""How many people noise labels differently: the method run again over synthetic people (`clustering.synthetic`)."""

from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from clustering.plan import Collected
from clustering.synthetic import People
from sfumato.encodings import cells
from sfumato.specs import RoundSpec

T = TypeVar("T")

Answer = Callable[[RoundSpec, int], Collected]  # to the round of this index
Relabel = Callable[[Answer], NDArray[np.int64]]

MAX_THROWS = 4
_WORK = 1 << 14  # cells of all throws together, beyond which there are fewer; never fewer than two


def expected_error(relabel: Relabel, density: NDArray[np.float64], reports: tuple[int, ...] | int) -> float:
    """The expected share of people whose label differs from that of the same method on unperturbed reports.

    People are drawn from the released density. The method labels the map once from their
    unperturbed reports and several times from perturbed ones, each with other coins; what is
    returned is the mean, over these throws, of the mass whose two labels differ under the best
    one-to-one naming of clusters. A cluster that only one of the two maps has counts as
    different. So it says how far to trust labels as far as noise is concerned: not whether
    the method, without noise, would find what somebody means by clusters, and it takes the
    released density for the truth, so structure that noise hid from it is not counted.

    Parameters
    ----------
    relabel : callable
        The method: from answers to its rounds to its label map.
    density : ndarray
        As released, of sum one.
    reports : tuple of int, or int
        How many answered each round; or how many people there are, of whom a round has those
        of its draws.

    Returns
    -------
    float
        In [0, 1].
    """
    people = People(density, reports)
    unperturbed = relabel(lambda spec, index: people.answer(spec, index, None))
    n_throws = min(MAX_THROWS, max(2, _WORK // density.size))
    differ = [disagreement(unperturbed, relabel(_thrown(people, throw)), density) for throw in range(n_throws)]
    return float(np.mean(differ))


def rerun(rounds: Generator[RoundSpec, Collected, T], answer: Answer) -> T:
    """Drive rounds to what they return, each answered by its index."""
    index = 0
    try:
        wanted = next(rounds)
        while True:
            wanted = rounds.send(answer(wanted, index))
            index += 1
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        rounds.close()


def _thrown(people: People, throw: int) -> Answer:
    return lambda spec, index: people.answer(spec, index, throw)


def disagreement(one: NDArray[np.int64], other: NDArray[np.int64], density: NDArray[np.float64]) -> float:
    """The mass whose labels differ under the best one-to-one naming of the labels of two maps.

    Parameters
    ----------
    one, other : ndarray of any shape of as many axes as the density, int64
        Label maps over the same box, 0 .. n-1.
    density : ndarray
        Of sum one; its mass is taken to be in the middle of its cells.
    """
    a, b = (_at_middles(labels, density.shape).ravel() for labels in (one, other))
    table = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(table, (a, b), density.ravel())
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(np.clip(1 - table[rows, columns].sum() / table.sum(), 0.0, 1.0))


def _at_middles(labels: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    if labels.shape == shape:
        return labels
    middles = [
        cells((np.arange(n)[:, None] + 0.5) / n, [n_own]).ravel() for n, n_own in zip(shape, labels.shape, strict=True)
    ]
    return labels[np.ix_(*middles)]
