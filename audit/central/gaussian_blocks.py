"""Black-box check of query answers in a concentrated block.

Under mu-Gaussian privacy, the probabilities p and q of any event for two neighbours satisfy Phi^-1(p) - Phi^-1(q) <= mu
(Dong, Roth and Su 2019, "Gaussian differential privacy", definition 2.6). Trials bound the two probabilities, and
therefore rho = mu^2 / 2 from below.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from audit.central.curator_queries import CLAIM, CellPerPerson
from audit.central.privacy_loss import epsilon_from_rho
from audit.checks.bounds import ERROR_PROBABILITY, bound_probability
from audit.checks.check import Check, Finding, Setting
from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock, Moments, Rho
from clustering.central.queries import MemoryJournal, Records, Second
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.specs import LATTICE

EPSILON_NANO, DELTA_ATTO = 12 * NANO, ATTO // 10**6  # rho is about 2, where tails give the best bounds
N_CELLS = 1 << 18  # trials per dataset, in a quick audit
PER_PERSON = 20  # records of a person in counts, so that the noise is much wider than integers

_N_THRESHOLDS = 512

QueryBlock = Callable[
    [ConcentratedBlock, int], ArrayLike
]  # a query over n cells that spends all of rho; returns one number per cell


def _counts(block: ConcentratedBlock, n: int) -> ArrayLike:
    return block.counts(CellPerPerson(n, PER_PERSON), block.left_pico)


def _query_moments(block: ConcentratedBlock, n: int, rho: Rho, second: Second) -> Moments:
    """Query residuals of maximal length, one record per cell."""
    places = np.zeros((n, block.n_features), dtype=np.int64)
    return block.moments(places, np.ones(n), rho, second, CellPerPerson(n))


def _sums(block: ConcentratedBlock, n: int) -> ArrayLike:
    """Query sums. The likelihood ratio depends on the sum of their coordinates."""
    return np.asarray(_query_moments(block, n, Rho(sums=block.left_pico), "squares").sums.sum(axis=1))


def _squares(block: ConcentratedBlock, n: int) -> ArrayLike:
    return _query_moments(block, n, Rho(seconds=block.left_pico), "squares").seconds


def _products(block: ConcentratedBlock, n: int) -> ArrayLike:
    """Query products. The likelihood ratio depends on the sum of each matrix."""
    return np.asarray(_query_moments(block, n, Rho(seconds=block.left_pico), "products").seconds.sum(axis=(1, 2)))


PROBES: Mapping[str, tuple[int, int, QueryBlock]] = {  # numbers of features and of records of a person
    "block: counts": (1, PER_PERSON, _counts),
    "block: sums": (2, 1, _sums),
    "block: squares": (2, 1, _squares),
    "block: products": (2, 1, _products),
}


def check_block_answer(kind: type[Curator], probe: str, setting: Setting) -> Finding:
    """Check one kind of query answer that spends the complete block."""
    n_features, per_person, query_block = PROBES[probe]
    people = np.full((N_CELLS * per_person, n_features), LATTICE - 1, dtype=np.int32)
    released = []
    for side, points in (("more", people), ("less", people[:0])):
        entropy, parts = setting.entropy(f"{probe}/{side}"), []
        for _ in range(setting.effort.trials(1)):
            curator = kind(Records(points, per_person), EPSILON_NANO, MemoryJournal(), entropy, DELTA_ATTO)
            parts.append(
                np.asarray(query_block(curator.open_block(EPSILON_NANO, DELTA_ATTO), N_CELLS), dtype=np.float64)
            )
        released.append(np.concatenate(parts))
    charged = EPSILON_NANO / NANO
    measured = epsilon_from_rho(bound_rho(released[0], released[1]), DELTA_ATTO / ATTO)
    is_over = measured > charged
    why = f"epsilon is at least {measured:.3f} at this delta, but {charged:.3f} was charged" if is_over else ""
    return Finding(f"curator: {probe}", CLAIM, "black box", 2 * len(released[0]), charged, measured, not is_over, why)


def bound_rho(sample: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return a lower bound on rho from one number per trial. The event "at least t" is more probable in `sample`.

    The first half of the trials selects the threshold t; the second half measures it.
    """
    half = len(sample) // 2
    thresholds = np.unique(np.concatenate([sample[:half], other[:half]]))
    thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, _N_THRESHOLDS).astype(np.int64))]
    hits = [half - np.searchsorted(np.sort(part[:half]), thresholds) for part in (sample, other)]
    threshold = thresholds[np.argmax(_bound_event_rho(hits[0], hits[1], half))]
    test_hits = [np.array([(part[half:] >= threshold).sum()]) for part in (sample, other)]
    return float(_bound_event_rho(test_hits[0], test_hits[1], len(sample) - half)[0])


def _bound_event_rho(hits: NDArray[np.int64], other_hits: NDArray[np.int64], trials: int) -> NDArray[np.float64]:
    """Return the bound; 0 if the event is not certainly more probable in the first sample."""
    low = bound_probability(hits, trials, ERROR_PROBABILITY / 2)[0]
    high = bound_probability(other_hits, trials, ERROR_PROBABILITY / 2)[1]
    return np.asarray(np.maximum(ndtri(low) - ndtri(high), 0.0) ** 2 / 2)


def _make_check(probe: str) -> Check:
    return Check(f"curator: {probe}", lambda setting: [check_block_answer(Curator, probe, setting)])


CHECKS: Sequence[Check] = tuple(_make_check(probe) for probe in PROBES)
