"""Black box: what each of a curator's answers spends, by what it releases and nothing else.

One question over very many cells, each of which holds one person or nobody, is as many trials: the
noise of a cell knows nothing of the others'. The statistic is the likelihood ratio of the noise that
is meant, or nearly; a wrong noise is judged by it all the same, as any statistic may be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.bounds import distinguish
from audit.check import Check, Finding, Setting
from clustering.curator import Curator, MemoryJournal, Records, Shares
from clustering.halving_tree import decay_of, tree_of
from sfumato.accounting import NANO
from sfumato.entropy import Entropy
from sfumato.specs import LATTICE

CLAIM = "an answer tells of a person no more than it is charged"
LOW_BITS = "the lowest bit of a released number tells no more than it is charged"

CELLS = 1 << 19  # trials on either side, of a quick audit
COUNTS = 8_000  # of the one question that has one number
LOW_BITS_OF = 20_000

LEVEL = 11  # of the tree, below which its paths are as many trials
TREES = 48
LEAST = 1000  # trials that a depth is looked at with


@dataclass(frozen=True)
class Alone:
    """Each person's records in a cell of their own: no partition of the box, but a door's whole width.

    Parameters
    ----------
    n_cells : int
    per_person : int
        Records each of them has.
    """

    n_cells: int
    per_person: int = 1

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.arange(len(points)) // self.per_person


class Seen(NamedTuple):
    """What was released, as one number for each trial, and what it cost."""

    charged: float
    more: NDArray[np.float64]  # (n,), of trials with the person
    less: NDArray[np.float64]  # (n,), without


Probe = Callable[[type[Curator], Setting], Sequence[Seen]]


def asked(curator: type[Curator], points: ArrayLike, setting: Setting, name: str, max_per_user: int = 1) -> Curator:
    """A curator of lattice places that may be asked without end."""
    records = Records(np.asarray(points, dtype=np.int32), max_per_user)
    return curator(records, 1 << 60, MemoryJournal(), setting.entropy(name))


def _seen(
    kind: type[Curator],
    setting: Setting,
    people: NDArray[np.int64],
    ask: Callable[[Curator], ArrayLike],
    max_per_user: int = 1,
) -> Sequence[Seen]:
    """What is released where everybody is there, and where nobody is; one epsilon was charged.

    More effort asks again and again: a question over more cells at once would want the memory.
    """
    released = []
    for name, points in (("more", people), ("less", people[:0])):
        door = asked(kind, points, setting, name, max_per_user)
        parts = [np.asarray(ask(door), dtype=np.float64) for _ in range(setting.effort.trials(1))]
        released.append(np.concatenate(parts))
    return [Seen(1.0, *released)]


def _count(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    n = setting.effort.trials(COUNTS)

    def drawn(points: NDArray[np.int32], entropy: Entropy) -> NDArray[np.float64]:
        doors = (kind(Records(points), NANO, MemoryJournal(), entropy) for _ in range(n))
        return np.array([door.count(NANO) for door in doors], dtype=np.float64)

    one = np.zeros((1, 1), dtype=np.int32)
    return [Seen(1.0, drawn(one, setting.entropy("more")), drawn(one[:0], setting.entropy("less")))]


def _counts(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    people = np.zeros((CELLS, 1), np.int64)
    return _seen(kind, setting, people, lambda door: door.counts(Alone(CELLS), NANO))


def _counts_of_users(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    n, held = CELLS // 2, 5
    people = np.zeros((n * held, 1), np.int64)
    return _seen(kind, setting, people, lambda door: door.counts(Alone(n, held), NANO), held)


def _sums(n_features: int, radius: int, place: int) -> Probe:
    """Sums of residuals from a centre at `place`, of people who are at the upper corner: clipped to the radius."""

    def probe(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
        n = CELLS
        centres, radii = np.full((n, n_features), place), np.full(n, radius)

        def ratio(door: Curator) -> NDArray[np.float64]:
            told = np.asarray(door.sums(Alone(n), centres, radii, Shares(NANO, NANO)).residuals, dtype=np.float64)
            return np.asarray((np.abs(told) - np.abs(told - radius / n_features)).sum(axis=1))

        return _seen(kind, setting, np.full((n, n_features), LATTICE - 1), ratio)

    return probe


def _sizes(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    n = CELLS
    centres, radii = np.zeros((n, 2), np.int64), np.full(n, LATTICE)

    def ask(door: Curator) -> ArrayLike:
        told = door.sums(Alone(n), centres, radii, Shares(NANO, NANO, NANO)).sizes
        return [] if told is None else told

    return _seen(kind, setting, np.full((n, 2), LATTICE - 1), ask)


def _squares(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    n = CELLS
    centres = np.zeros((n, 1), np.int64)
    people = np.full((n, 1), LATTICE - 1)
    return _seen(kind, setting, people, lambda door: door.squares(Alone(n), centres, NANO))


def _lowest_bits(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    """Which bit of a count is the lowest that is set: of a float, it tells what was added to what."""
    n = LOW_BITS_OF
    people = np.zeros((n, 1), np.int64)
    return _seen(kind, setting, people, lambda door: lowest_bit(np.asarray(door.counts(Alone(n), NANO))))


def lowest_bit(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The exponent of the lowest bit that is set in each number; 64 of zero."""
    parts, exponents = np.frexp(values.astype(np.float64))
    whole = np.abs(parts * 2.0**53).astype(np.int64)
    zeros = np.log2(np.maximum(whole & -whole, 1))
    return np.where(whole == 0, 64.0, exponents - 53 + zeros)


def _decisions(kind: type[Curator], setting: Setting) -> Sequence[Seen]:
    """Of the tree: very many paths that hold equally many people, and one more; for each depth, who was split there.

    Paths part at LEVEL with as many records as leave it a little to the noise whether they go on;
    above, all is split. One decision weighs a third of the charge at the most.
    """
    places = np.arange(1 << LEVEL) * (LATTICE >> LEVEL)
    least = decay_of(Fraction(3)) * (LEVEL + 1)
    seen: list[list[NDArray[np.int64]]] = [[], []]
    for side, held in enumerate((least + 1, least)):
        door = asked(kind, np.repeat(places, held)[:, None], setting, f"tree {side}")
        for _ in range(setting.effort.trials(TREES)):
            seen[side].append(_depths(door.halving_tree(NANO)))
    more, less = (np.concatenate(depths) for depths in seen)
    return [
        Seen(1 / 3, *((depths[depths >= level] > level).astype(np.float64) for depths in (more, less)))
        for level in range(LEVEL, min(int(more.max()), int(less.max())) + 1)
        if min((more >= level).sum(), (less >= level).sum()) >= LEAST
    ]


def _depths(is_split: NDArray[np.int64]) -> NDArray[np.int64]:
    """How deep each path of `_decisions` was split: from its node at LEVEL on it is the lower half, time and again."""
    tree = tree_of(is_split, 1)
    nodes = np.flatnonzero(tree.levels == LEVEL)
    depths = np.full(len(nodes), LEVEL)
    (going,) = np.nonzero(tree.first[nodes] >= 0)
    while going.size:
        nodes[going] = tree.first[nodes[going]]
        depths[going] += 1
        going = going[tree.first[nodes[going]] >= 0]
    return depths


PROBES: Mapping[str, tuple[str, Probe]] = {
    "count": (CLAIM, _count),
    "counts": (CLAIM, _counts),
    "counts of users": (CLAIM, _counts_of_users),
    "counts, lowest bit": (LOW_BITS, _lowest_bits),
    "sums along a feature": (CLAIM, _sums(1, LATTICE // 4, LATTICE // 2)),
    "sums across features": (CLAIM, _sums(2, LATTICE, 0)),
    "sizes": (CLAIM, _sizes),
    "squares": (CLAIM, _squares),
    "halving tree": (CLAIM, _decisions),
}


def look(kind: type[Curator], probe: str, setting: Setting) -> Finding:
    """Put one of a curator's answers to the test."""
    claim, run = PROBES[probe]
    seen = run(kind, setting)
    charged = seen[0].charged
    bounds = [distinguish(each.more, each.less) for each in seen]
    measured = max(bound.epsilon for bound in bounds)
    return Finding(
        subject=f"curator: {probe}",
        claim=claim,
        method="black box",
        trials=max(bound.trials for bound in bounds),
        charged=charged,
        measured=measured,
        holds=measured <= charged,
        why="" if measured <= charged else f"epsilon is {measured:.3f} at least, and {charged:.3f} was charged",
    )


def _check(probe: str) -> Check:
    return Check(f"curator: {probe}", lambda setting: [look(Curator, probe, setting)])


CHECKS: tuple[Check, ...] = tuple(_check(probe) for probe in PROBES)
