"""Effective reports of grid plans, and the warnings that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from clustering.rounds.decoders import Decoder
from sfumato.model.precision import mass_noise
from sfumato.sizing.rounds import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS

NOISE_FACTOR = 8.0  # least E of a detectable bump, in units of δ, the mass that noise can fake
DETECTABLE_ERRORS = 2.0  # least E of a detectable bump, in its standard errors


@dataclass(frozen=True)
class Confidence:
    """Limits on conclusions from a number of reports and their mechanism; build it with `confidence`.

    Attributes
    ----------
    n_reports : int
    n_eff : float
        N (e^eps - 1)^2 / (4 e^eps); infinite without perturbation.
    reports_needed : int
        Reports needed for n_eff = 1e4.
    low_confidence : bool
        Whether n_eff is below 1e4.
    delta : float
        δ, the share of the population that noise can fake.
    """

    n_reports: int
    n_eff: float
    reports_needed: int
    low_confidence: bool
    delta: float

    def is_detectable(self, excess: float, error: float) -> bool:
        """Return whether a bump's excess of mass is significant: E >= 8 δ and E >= two standard errors."""
        return excess >= max(NOISE_FACTOR * self.delta, DETECTABLE_ERRORS * error)

    def diagnostics(self) -> dict[str, Any]:
        """Return the published diagnostics; an infinite n_eff becomes null."""
        return {
            "n_reports": self.n_reports,
            "n_eff": finite(self.n_eff),
            "reports_needed": self.reports_needed,
            "low_confidence": self.low_confidence,
            "delta": self.delta,
        }

    def warnings(self, clusters: int | None, detectable: Sequence[bool], *, refused: bool = False) -> tuple[str, ...]:
        """Return the limitations of a model as sentences.

        Parameters
        ----------
        clusters : int or None
            Requested number of clusters.
        detectable : sequence of bool
            Whether each cluster of the model is detectable.
        refused : bool
            Whether the clusters were not counted for lack of reports.
        """
        messages = []
        if refused and clusters is None:
            messages.append(
                f"{self.n_reports} reports at this epsilon are too few to count clusters, so there is one cluster. "
                f"Collect about {self.reports_needed} reports, or give the number of clusters."
            )
        elif self.low_confidence and clusters is None:
            messages.append(
                f"{self.n_reports} reports at this epsilon are few to count clusters, so some may be missing. "
                f"Collect about {self.reports_needed} reports, or give the number of clusters."
            )
        elif self.low_confidence:
            messages.append(
                f"{self.n_reports} reports are few at this epsilon. Collect about {self.reports_needed} reports "
                f"for a stable result."
            )
        return (*messages, *describe_bumps(clusters, detectable))


def confidence(n_reports: int, reading: Decoder) -> Confidence:
    """Return the confidence for `n_reports`, at least one, through a decoder's mechanism."""
    n_eff = n_reports * reading.signal
    return Confidence(
        n_reports,
        n_eff,
        min(max(1, ceil(MIN_EFFECTIVE_REPORTS / reading.signal)), MAX_JSON_INT),
        n_eff < MIN_EFFECTIVE_REPORTS,
        mass_noise(n_reports, reading.contrast),
    )


def describe_bumps(clusters: int | None, detectable: Sequence[bool]) -> tuple[str, ...]:
    """Return warnings that clusters are missing or may be noise; see `Confidence.warnings`."""
    messages = []
    if clusters is not None and len(detectable) < clusters:
        messages.append(f"{clusters} clusters were requested, but only {len(detectable)} bumps were found.")
    if not all(detectable):
        doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
        messages.append(f"Clusters that may be noise, by their excess of mass: {doubtful}.")
    return tuple(messages)


def finite(value: float) -> float | None:
    """Return a number as JSON can encode it: None if it is infinite."""
    return value if isfinite(value) else None
