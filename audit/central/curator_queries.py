"""Black-box check of each kind of query answer of a curator.

One query over very many cells, each with one person or none, gives one trial per cell, because the noise of cells is
independent. The statistic is the likelihood ratio of the correct noise, or close to it. It is a valid statistic for
wrong noise too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.checks.bounds import distinguish
from audit.checks.check import Check, Finding, Setting
from audit.mechanisms.sampler_draws import lowest_bit
from clustering.central.curator import Curator
from clustering.central.narrowing import Bounds, FeatureHistograms
from clustering.central.privtree import build_tree, compute_decay
from clustering.central.queries import MemoryJournal, Records, Shares
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy
from sfumato.specs import LATTICE

CLAIM = "a query answer reveals at most the charged epsilon"
LOW_BITS = "the lowest bit of a released number reveals at most the charged epsilon"

N_CELLS = 1 << 19  # trials per dataset, in a quick audit
N_COUNTS = 8_000  # trials of the query that returns one number
N_LOW_BITS = 20_000

FIRST_LEVEL = 11  # level of the tree from which each path is one trial
N_TREES = 48
MIN_TRIALS = 1000  # a depth with fewer trials is skipped


@dataclass(frozen=True)
class CellPerPerson:
    """Cells that assign each person's records to a cell of their own, by position. They are no partition of the box.

    Parameters
    ----------
    n_cells : int
    per_person : int
        Number of records per person.
    """

    n_cells: int
    per_person: int = 1

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.arange(len(points)) // self.per_person


class Trials(NamedTuple):
    """Released values, one number per trial, and the charged epsilon."""

    charged: float
    more: NDArray[np.float64]  # (n,), with the person
    less: NDArray[np.float64]  # (n,), without


Probe = Callable[[type[Curator], Setting], Sequence[Trials]]


def make_curator(
    curator: type[Curator], points: ArrayLike, setting: Setting, name: str, max_per_user: int = 1
) -> Curator:
    """Return a curator of lattice places with an unlimited budget."""
    records = Records(np.asarray(points, dtype=np.int32), max_per_user)
    return curator(records, 1 << 60, MemoryJournal(), setting.entropy(name))


def _run_trials(
    kind: type[Curator],
    setting: Setting,
    people: NDArray[np.int64],
    query: Callable[[Curator], ArrayLike],
    max_per_user: int = 1,
) -> Sequence[Trials]:
    """Return the answers with all persons and without any, for a charge of epsilon 1.

    A larger effort repeats the query, because one query over more cells would need more memory.
    """
    released = []
    for name, points in (("more", people), ("less", people[:0])):
        curator = make_curator(kind, points, setting, name, max_per_user)
        parts = [np.asarray(query(curator), dtype=np.float64) for _ in range(setting.effort.trials(1))]
        released.append(np.concatenate(parts))
    return [Trials(1.0, *released)]


def _count(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    n = setting.effort.trials(N_COUNTS)

    def sample_counts(points: NDArray[np.int32], entropy: Entropy) -> NDArray[np.float64]:
        curators = (kind(Records(points), NANO, MemoryJournal(), entropy) for _ in range(n))
        return np.array([curator.count(NANO) for curator in curators], dtype=np.float64)

    one = np.zeros((1, 1), dtype=np.int32)
    return [Trials(1.0, sample_counts(one, setting.entropy("more")), sample_counts(one[:0], setting.entropy("less")))]


def _counts(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    people = np.zeros((N_CELLS, 1), np.int64)
    return _run_trials(kind, setting, people, lambda curator: curator.counts(CellPerPerson(N_CELLS), NANO))


def _histograms(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    """Give each person a bin of its own in both features, so that a record changes two counts."""
    n = N_CELLS
    people = np.repeat(np.arange(n)[:, None] * (LATTICE // n), 2, axis=1)
    histograms = FeatureHistograms(Bounds(np.zeros(2, np.int64), np.full(2, LATTICE)), n)

    def ratio(curator: Curator) -> NDArray[np.float64]:
        answer = curator.histograms(histograms, NANO).reshape(2, n).astype(np.float64)
        return np.asarray((np.abs(answer) - np.abs(answer - 1)).sum(axis=0))

    return _run_trials(kind, setting, people, ratio)


def _counts_of_users(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    n, per_person = N_CELLS // 2, 5
    people = np.zeros((n * per_person, 1), np.int64)
    return _run_trials(
        kind, setting, people, lambda curator: curator.counts(CellPerPerson(n, per_person), NANO), per_person
    )


def _sums(n_features: int, radius: int, place: int) -> Probe:
    """Return a probe of residuals from `place`, clipped to the radius. All persons are at the upper corner."""

    def probe(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
        n = N_CELLS
        centres, radii = np.full((n, n_features), place), np.full(n, radius)

        def ratio(curator: Curator) -> NDArray[np.float64]:
            answer = np.asarray(
                curator.sums(CellPerPerson(n), centres, radii, Shares(NANO, NANO)).residuals, dtype=np.float64
            )
            return np.asarray((np.abs(answer) - np.abs(answer - radius / n_features)).sum(axis=1))

        return _run_trials(kind, setting, np.full((n, n_features), LATTICE - 1), ratio)

    return probe


def _sizes(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    n = N_CELLS
    centres, radii = np.zeros((n, 2), np.int64), np.full(n, LATTICE)

    def query(curator: Curator) -> ArrayLike:
        answer = curator.sums(CellPerPerson(n), centres, radii, Shares(NANO, NANO, NANO)).sizes
        return [] if answer is None else answer

    return _run_trials(kind, setting, np.full((n, 2), LATTICE - 1), query)


def _squares(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    n = N_CELLS
    centres = np.zeros((n, 1), np.int64)
    people = np.full((n, 1), LATTICE - 1)
    return _run_trials(kind, setting, people, lambda curator: curator.squares(CellPerPerson(n), centres, NANO))


def _lowest_bits(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    """Release the lowest set bit of each count. For floats, this bit depends on both summands."""
    n = N_LOW_BITS
    people = np.zeros((n, 1), np.int64)
    return _run_trials(
        kind, setting, people, lambda curator: lowest_bit(np.asarray(curator.counts(CellPerPerson(n), NANO)))
    )


def _decisions(kind: type[Curator], setting: Setting) -> Sequence[Trials]:
    """Release the splits of a tree: very many paths with equal numbers of records, and with one more.

    Paths separate at FIRST_LEVEL, where the noise decides whether a cell with so many records is split; all levels
    above are split. One decision may spend at most a third of the charge.
    """
    places = np.arange(1 << FIRST_LEVEL) * (LATTICE >> FIRST_LEVEL)
    least = compute_decay(Fraction(3)) * (FIRST_LEVEL + 1)
    trials: list[list[NDArray[np.int64]]] = [[], []]
    for side, per_person in enumerate((least + 1, least)):
        curator = make_curator(kind, np.repeat(places, per_person)[:, None], setting, f"tree {side}")
        for _ in range(setting.effort.trials(N_TREES)):
            trials[side].append(_depths(curator.halving_tree(NANO)))
    more, less = (np.concatenate(depths) for depths in trials)
    return [
        Trials(1 / 3, *((depths[depths >= level] > level).astype(np.float64) for depths in (more, less)))
        for level in range(FIRST_LEVEL, min(int(more.max()), int(less.max())) + 1)
        if min((more >= level).sum(), (less >= level).sum()) >= MIN_TRIALS
    ]


def _depths(is_split: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the depth of each path of `_decisions`. A path always continues in the lower half."""
    tree = build_tree(is_split, 1)
    nodes = np.flatnonzero(tree.levels == FIRST_LEVEL)
    depths = np.full(len(nodes), FIRST_LEVEL)
    (active,) = np.nonzero(tree.first[nodes] >= 0)
    while active.size:
        nodes[active] = tree.first[nodes[active]]
        depths[active] += 1
        active = active[tree.first[nodes[active]] >= 0]
    return depths


PROBES: Mapping[str, tuple[str, Probe]] = {
    "count": (CLAIM, _count),
    "counts": (CLAIM, _counts),
    "counts of users": (CLAIM, _counts_of_users),
    "histograms": (CLAIM, _histograms),
    "counts, lowest bit": (LOW_BITS, _lowest_bits),
    "sums along a feature": (CLAIM, _sums(1, LATTICE // 4, LATTICE // 2)),
    "sums across features": (CLAIM, _sums(2, LATTICE, 0)),
    "sizes": (CLAIM, _sizes),
    "squares": (CLAIM, _squares),
    "halving tree": (CLAIM, _decisions),
}


def check_answer(kind: type[Curator], probe: str, setting: Setting) -> Finding:
    """Check one kind of query answer."""
    claim, run = PROBES[probe]
    trials = run(kind, setting)
    charged = trials[0].charged
    bounds = [distinguish(each.more, each.less) for each in trials]
    measured = max(bound.epsilon for bound in bounds)
    return Finding(
        subject=f"curator: {probe}",
        claim=claim,
        method="black box",
        trials=max(bound.trials for bound in bounds),
        charged=charged,
        measured=measured,
        holds=measured <= charged,
        why="" if measured <= charged else f"epsilon is at least {measured:.3f}, but {charged:.3f} was charged",
    )


def _make_check(probe: str) -> Check:
    return Check(f"curator: {probe}", lambda setting: [check_answer(Curator, probe, setting)])


CHECKS: tuple[Check, ...] = tuple(_make_check(probe) for probe in PROBES)
