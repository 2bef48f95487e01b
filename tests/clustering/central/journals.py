"""Test journals that record and replay answers, and curators over given points, or without noise."""

from dataclasses import dataclass

import numpy as np

from clustering.central.curator import Curator
from clustering.central.queries import Query, Records
from clustering.errors import BudgetOverdrawn
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE


class KeepingJournal:
    """A journal that records charges and answers, and replays given answers."""

    def __init__(self, answers=None):
        self.charges: list[Query] = []
        self.answers = [] if answers is None else list(answers)
        self.n_kept = 0

    def charge(self, index, query):
        assert index == len(self.charges)
        self.charges.append(query)
        return self.answers[index] if index < len(self.answers) else None

    def keep(self, index, answer):
        assert index == len(self.answers)
        self.answers.append(answer)
        self.n_kept += 1


class RefusingJournal(KeepingJournal):
    """A journal that refuses each charge of a query with values."""

    def charge(self, index, query):
        if query.n_values:
            raise BudgetOverdrawn(cost_nano=query.epsilon_nano, left_nano=0)
        return super().charge(index, query)


@dataclass
class UnreadableCells:
    """Cells that fail if a query reads the records."""

    n_cells: int = 4

    def index(self, points):
        raise AssertionError("a query read the records")


class NoEntropy:
    """An entropy source that fails on every draw."""

    def words(self, n):
        raise AssertionError("noise was drawn")


def curator_of(points, epsilon_nano=NANO, *, journal=None, seed=0, max_per_user=1, entropy=None, delta_atto=0):
    """Return a curator over these lattice places."""
    records = Records(np.asarray(points, dtype=np.int32), max_per_user)
    return Curator(records, epsilon_nano, journal or KeepingJournal(), entropy or SeededEntropy(seed), delta_atto)


def some_records():
    return np.random.default_rng(3).integers(0, LATTICE, (200, 2)).astype(np.int32)


def remove_noise(patch, kind):
    """Replace noise of this kind by zeros. Return the list of the noises that would have been drawn."""
    collected = []

    def draw(self, entropy):
        collected.append(self)
        return np.zeros(len(self.sensitivities), dtype=np.int64)

    patch.setattr(kind, "draw", draw)
    return collected
