"""Black box: what answers in a concentrated block tell, by what they release and nothing else.

Under rho-concentrated privacy Renyi's divergence of order a between the answers over two neighbours
is at most a rho, for every a > 1, and so is that between the chances of any event (Bun and Steinke
2016, lemma 2.2). Trials bound two chances of one event, and these bound rho from below.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.bounds import MISTAKE, probability_bounds
from audit.check import Check, Finding, Setting
from audit.curator import CLAIM, Alone
from audit.curator_loss import epsilon_of
from clustering.concentrated_block import ConcentratedBlock
from clustering.curator import Curator, MemoryJournal, Records, Shares
from sfumato.accounting import ATTO, NANO
from sfumato.specs import LATTICE

EPSILON_NANO, DELTA_ATTO = 12 * NANO, ATTO // 10**6  # a rho of about two, at which a tail says the most
CELLS = 1 << 18  # trials on either side, of a quick audit
ORDERS = 1 + np.exp2(np.linspace(-4, 5, 37))

_PLACES = 512

Ask = Callable[
    [ConcentratedBlock, int], ArrayLike
]  # one question over so many cells, for all of rho: a number for each


def _counts(block: ConcentratedBlock, n: int) -> ArrayLike:
    return block.counts(Alone(n), block.left_pico)


def _sums(block: ConcentratedBlock, n: int) -> ArrayLike:
    """Residuals across all features, as long as their radius: the likelihood ratio goes by their sum."""
    d = block.n_features
    centres, radii = np.zeros((n, d), dtype=np.int64), np.full(n, LATTICE)
    told = block.sums(Alone(n), centres, radii, Shares(block.left_pico - 1, 1))
    return np.asarray(told.residuals.sum(axis=1))


def _sizes(block: ConcentratedBlock, n: int) -> ArrayLike:
    centres, radii = np.zeros((n, block.n_features), dtype=np.int64), np.full(n, LATTICE)
    told = block.sums(Alone(n), centres, radii, Shares(1, 1, block.left_pico - 2))
    return [] if told.sizes is None else told.sizes


PROBES: Mapping[str, tuple[int, Ask]] = {
    "block: counts": (1, _counts),
    "block: sums": (2, _sums),
    "block: sizes": (2, _sizes),
}


def look(kind: type[Curator], probe: str, setting: Setting) -> Finding:
    """Put one of a block's answers to the test, for all that the block may tell."""
    n_features, ask = PROBES[probe]
    people = np.full((CELLS, n_features), LATTICE - 1, dtype=np.int32)
    released = []
    for side, points in (("more", people), ("less", people[:0])):
        entropy, parts = setting.entropy(f"{probe}/{side}"), []
        for _ in range(setting.effort.trials(1)):
            door = kind(Records(points), EPSILON_NANO, MemoryJournal(), entropy, DELTA_ATTO)
            parts.append(np.asarray(ask(door.concentrated(EPSILON_NANO, DELTA_ATTO), CELLS), dtype=np.float64))
        released.append(np.concatenate(parts))
    charged = EPSILON_NANO / NANO
    measured = epsilon_of(rho_bound(released[0], released[1]), DELTA_ATTO / ATTO)
    is_over = measured > charged
    why = f"epsilon is {measured:.3f} at least at this delta, and {charged:.3f} was charged" if is_over else ""
    return Finding(f"curator: {probe}", CLAIM, "black box", 2 * len(released[0]), charged, measured, not is_over, why)


def rho_bound(seen: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """What rho is at least, from one number for each trial; the event "at least so much" is the likelier in `seen`.

    The threshold is chosen on the first half of the trials and judged on the second.
    """
    half = len(seen) // 2
    places = np.unique(np.concatenate([seen[:half], other[:half]]))
    places = places[np.unique(np.linspace(0, len(places) - 1, _PLACES).astype(np.int64))]
    hits = [half - np.searchsorted(np.sort(part[:half]), places) for part in (seen, other)]
    place = places[np.argmax(_rho(hits[0], hits[1], half))]
    judged = [np.array([(part[half:] >= place).sum()]) for part in (seen, other)]
    return float(_rho(judged[0], judged[1], len(seen) - half)[0])


def _rho(hits: NDArray[np.int64], other_hits: NDArray[np.int64], trials: int) -> NDArray[np.float64]:
    """The most that any order says, where an event came so often; 0 where it is not surely the likelier."""
    low = probability_bounds(hits, trials, MISTAKE / 2)[0][:, None]
    high = probability_bounds(other_hits, trials, MISTAKE / 2)[1][:, None]
    surely = low > high
    p, q = np.where(surely, low, 0.5), np.where(surely, high, 0.5)
    with np.errstate(divide="ignore"):
        ones = ORDERS * np.log(p) + (1 - ORDERS) * np.log(q)
        others = ORDERS * np.log1p(-p) + (1 - ORDERS) * np.log1p(-q)
    told = (np.logaddexp(ones, others) / ((ORDERS - 1) * ORDERS)).max(axis=1)
    return np.where(surely[:, 0], told, 0.0)


def _check(probe: str) -> Check:
    return Check(f"curator: {probe}", lambda setting: [look(Curator, probe, setting)])


CHECKS: Sequence[Check] = tuple(_check(probe) for probe in PROBES)
