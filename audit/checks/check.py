"""Types of the audit: effort, setting, check, finding and planted leak."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from clustering.random import SeededEntropy


class Effort(StrEnum):
    """The number of trials of an audit.

    With every effort, the exact and replay checks detect an excess of 30 % in mechanisms, plans and query answers.
    The black-box check of an algorithm's released model alone detects less; see `audit.central.black_box`.
    """

    QUICK = "quick"  # takes minutes; runs in CI
    FULL = "full"
    NIGHTLY = "nightly"

    def trials(self, quick: int) -> int:
        """Return the number of trials of a check that takes `quick` trials in a quick audit."""
        return quick * {Effort.QUICK: 1, Effort.FULL: 5, Effort.NIGHTLY: 50}[self]


@dataclass(frozen=True, slots=True)
class Setting:
    """The effort and the seed of one audit. Equal settings give equal findings."""

    effort: Effort
    seed: int

    def entropy(self, name: str) -> SeededEntropy:
        """Return the randomness of one part of a check. Parts with different names are independent."""
        return SeededEntropy(int.from_bytes(f"{self.seed}/{name}".encode(), "big"))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check of one claim.

    Attributes
    ----------
    subject : str
        The checked object: "oue x grid", "dp_kmeans", "ledger".
    claim : str
        The property that the subject claims.
    method : str
        exact, replay, black box, chi-square, mean size, sample or walk.
    trials : int
        The number of enumerated cases, runs, noise samples or steps.
    charged, measured : float, optional
        The epsilon that the subject charges and the epsilon that it spends. The latter is exact, or a lower bound at
        the confidence of `audit.checks.bounds`. For shuffled reports and courses of jobs, the stated delta and its
        exact value, sample or lower bound.
    holds : bool
    why : str
        The observation that contradicts the claim; empty if the claim holds.
    """

    subject: str
    claim: str
    method: str
    trials: int
    charged: float | None = None
    measured: float | None = None
    holds: bool = True
    why: str = ""

    def __post_init__(self) -> None:
        if self.holds == bool(self.why):
            raise ValueError(f"a finding about {self.subject} needs a reason if the claim fails, and only then")


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one subject; `run` yields one finding per claim."""

    subject: str
    run: Callable[[Setting], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Leak:
    """A broken variant of a subject. It is detected if the check of the sound form finds a fault.

    Attributes
    ----------
    name : str
        For example, "noise at 70 %".
    subject : str
        The subject that contains the leak.
    run : callable
        The check of the sound form, applied to the broken variant. The audit ends it at the first fault.
    """

    name: str
    subject: str
    run: Callable[[Setting], Iterable[Finding]]
