"""The share of people outside of the bounds in a result, with its warning and its limit of the verdict."""

from dataclasses import replace
from typing import NamedTuple

from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict

STATED = 0.05  # share outside from which a result warns
DECISIVE = 0.1  # share outside above which a result is at most `uncertain`
CLEAR = 2.0  # standard errors above zero from which a share is taken as real


OUTSIDE_REASON = "Many people are outside of the bounds."


class OutsideShare(NamedTuple):
    """An unbiased estimate of the share of people outside, which noise can make negative, and its standard error."""

    value: float
    error: float


def with_outside_share(model: ClusterModel, share: OutsideShare, received_per_used: float) -> ClusterModel:
    """Return a model of the people inside with the share of those outside, a warning from 5 % on, and its verdict.

    The diagnostic `n_reports` becomes the number of reports. `n_reports_inside` is the number that the fit used: with
    so many reports of people inside alone, its estimates would have the same errors.

    Parameters
    ----------
    model : ClusterModel
        Fitted to the people inside. Its shares sum over them.
    share : OutsideShare
    received_per_used : float
        Number of reports received for each that the fit used.
    """
    verdict, warnings = model.verdict, list(model.warnings)
    is_real = share.value >= CLEAR * share.error
    if share.value + share.error >= STATED and is_real:
        warnings.insert(0, _sentence(share))
    elif share.error > STATED:
        warnings.append(f"The share of people outside of the bounds is known to ± {_percent(share.error)} only.")
    if is_real and share.value > DECISIVE:
        verdict = verdict.or_worse(Verdict.UNCERTAIN)
    if share.value > 1 - CLEAR * share.error - STATED:
        verdict = Verdict.DOUBTFUL
    diagnostics = dict(model.diagnostics)
    if "n_reports" in diagnostics:
        used = diagnostics["n_reports"]
        diagnostics |= {"n_reports": round(used * received_per_used), "n_reports_inside": used}
    return replace(
        model,
        outside_share=min(max(share.value, 0.0), 1.0),
        outside_share_error=min(share.error, 1.0),
        verdict=verdict,
        verdict_reason=model.verdict_reason if verdict is model.verdict else OUTSIDE_REASON,
        warnings=tuple(warnings),
        diagnostics=diagnostics,
    )


def _sentence(share: OutsideShare) -> str:
    return (
        f"About {_percent(share.value)} (± {_percent(share.error)}) of the people are outside of the bounds. The "
        "result and its shares describe those inside. Check the bounds, the units and the order of the values."
    )


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2g} %"
