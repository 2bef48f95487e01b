"""Journals that tests look into: one that keeps answers, one that gives them again, and parts of a curator."""

import numpy as np

from clustering.curator import Curator, Question, Records
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import NANO


class KeepingJournal:
    """Writes everything down; given answers, it gives those in turn."""

    def __init__(self, answers=None):
        self.charges: list[Question] = []
        self.answers = [] if answers is None else list(answers)
        self.n_kept = 0

    def charge(self, index, question):
        assert index == len(self.charges)
        self.charges.append(question)
        return self.answers[index] if index < len(self.answers) else None

    def keep(self, index, answer):
        assert index == len(self.answers)
        self.answers.append(answer)
        self.n_kept += 1


class NoEntropy:
    """Nothing may be drawn."""

    def words(self, n):
        raise AssertionError("noise was drawn")


def curator_of(points, epsilon_nano=NANO, *, journal=None, seed=0, max_per_user=1, entropy=None, delta_atto=0):
    """A curator of lattice places."""
    records = Records(np.asarray(points, dtype=np.int32), max_per_user)
    return Curator(records, epsilon_nano, journal or KeepingJournal(), entropy or SeededEntropy(seed), delta_atto)
