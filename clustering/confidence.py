"""How far a result of grid plans can be believed: the effective reports, and the sentences that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from clustering.decoders import Decoder
from sfumato.precision import mass_noise
from sfumato.sizing import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS

NOISE_FACTOR = 8.0  # E in δ, the mass that noise can fake, to be called detectable
DETECTABLE_ERRORS = 2.0  # and E in its standard errors


@dataclass(frozen=True)
class Confidence:
    """What the number of reports and their mechanism allow to be said; made by `confidence`.

    Attributes
    ----------
    n_reports : int
    n_eff : float
        N (e^eps - 1)^2 / (4 e^eps); infinite where nothing was perturbed.
    reports_needed : int
        For n_eff = 1e4.
    low_confidence : bool
        n_eff is less.
    delta : float
        δ, the mass of people that noise can fake.
    """

    n_reports: int
    n_eff: float
    reports_needed: int
    low_confidence: bool
    delta: float

    def is_detectable(self, excess: float, error: float) -> bool:
        """Whether a bump of this excess of mass and standard error is more than noise: E >= 8 δ and two errors."""
        return excess >= max(NOISE_FACTOR * self.delta, DETECTABLE_ERRORS * error)

    def diagnostics(self) -> dict[str, Any]:
        """As published; an infinite n_eff is null."""
        return {
            "n_reports": self.n_reports,
            "n_eff": finite(self.n_eff),
            "reports_needed": self.reports_needed,
            "low_confidence": self.low_confidence,
            "delta": self.delta,
        }

    def warnings(self, clusters: int | None, detectable: Sequence[bool], *, refused: bool = False) -> tuple[str, ...]:
        """What a reader must know before they believe the model, in sentences.

        Parameters
        ----------
        clusters : int or None
            As asked for.
        detectable : sequence of bool
            Of each cluster of the model.
        refused : bool
            Whether the clusters would not be counted for want of reports.
        """
        said = []
        if refused and clusters is None:
            said.append(
                f"{self.n_reports} reports at this epsilon are too few to count clusters, so everybody is put in "
                f"one; about {self.reports_needed} would do, or name the number of clusters."
            )
        elif self.low_confidence and clusters is None:
            said.append(
                f"{self.n_reports} reports are few to count clusters by at this epsilon, so some may be missing; "
                f"about {self.reports_needed} would do, or name the number of clusters."
            )
        elif self.low_confidence:
            said.append(
                f"{self.n_reports} reports are few at this epsilon; about {self.reports_needed} would make for "
                f"a steady result."
            )
        if clusters is not None and len(detectable) < clusters:
            said.append(f"{clusters} clusters were asked for, but only {len(detectable)} bumps were found.")
        if not all(detectable):
            doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
            said.append(f"Clusters that noise could have made, by their excess mass: {doubtful}.")
        return tuple(said)


def confidence(n_reports: int, reading: Decoder) -> Confidence:
    """What `n_reports` of this mechanism allow to be said; at least one report."""
    n_eff = n_reports * reading.signal
    return Confidence(
        n_reports,
        n_eff,
        min(max(1, ceil(MIN_EFFECTIVE_REPORTS / reading.signal)), MAX_JSON_INT),
        n_eff < MIN_EFFECTIVE_REPORTS,
        mass_noise(n_reports, reading.contrast),
    )


def finite(value: float) -> float | None:
    """A number that JSON can carry; none for an infinite one."""
    return value if isfinite(value) else None
