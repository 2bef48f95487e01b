"""What is checked, what came of it, and leaks that must be caught."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from clustering.seeded_entropy import SeededEntropy


class Effort(StrEnum):
    """How long the audit may look.

    An excess of 30 % is seen by each: by what is exact or replayed, of mechanisms, plans and the curator's
    answers. Of a whole algorithm's released model a black box alone sees less; see `audit.central_blackbox`.
    """

    QUICK = "quick"  # in minutes: what CI runs
    FULL = "full"
    NIGHTLY = "nightly"

    def trials(self, quick: int) -> int:
        """Trials of a check that takes so many when it is quick."""
        return quick * {Effort.QUICK: 1, Effort.FULL: 5, Effort.NIGHTLY: 50}[self]


@dataclass(frozen=True, slots=True)
class Setting:
    """How one run of the audit looks: equal settings find the same."""

    effort: Effort
    seed: int

    def entropy(self, name: str) -> SeededEntropy:
        """Randomness of one part of a check, by its name: independent of every other's."""
        return SeededEntropy(int.from_bytes(f"{self.seed}/{name}".encode(), "big"))


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    subject : str
        What was looked at: "oue x grid", "dp_kmeans", "ledger".
    claim : str
        What it says of itself.
    method : str
        exact, replay, black box, chi-square, mean size or walk.
    trials : int
        Cases enumerated, runs, or steps.
    charged, measured : float, optional
        Epsilon: what is charged for it, and what it was seen to spend: exactly, or a lower bound at
        the confidence of `audit.bounds`.
    holds : bool
    why : str
        Where it does not hold: what was seen.
    """

    subject: str
    claim: str
    method: str
    trials: int
    charged: float | None = None
    measured: float | None = None
    holds: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim that can fail; `run` looks, and says what it found."""

    subject: str
    run: Callable[[Setting], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class Leak:
    """A broken variant of something, put to the check of the sound one: caught if that finds fault.

    Attributes
    ----------
    name : str
        "noise at 70 %".
    subject : str
        What it was planted in.
    run : callable
        The very check of the sound form, over the broken one.
    """

    name: str
    subject: str
    run: Callable[[Setting], Sequence[Finding]]
