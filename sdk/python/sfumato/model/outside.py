"""The share of people outside of or at the bounds in a result, with its warning and its limit of the verdict."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict
from sfumato.records.encodings import scale_errors, scale_many
from sfumato.specs import endless_of

STATED = 0.05  # share outside from which a result warns
DECISIVE = 0.1  # share outside above which a result is at most `uncertain`
AT_BOUND = 0.005  # distance from a bound, as a share of the range, below which a centre lies at it
CLEAR = 2.0  # standard errors above zero from which a share is taken as real


OUTSIDE_REASON = "Many people are outside of the bounds."
EDGE_REASON = "Many people are at the bounds, where values outside of the bounds are moved."
UNSEEN = (
    "Values outside of the bounds are moved to the bounds. This method shows them only as a cluster with its centre at "
    "a bound, so check the bounds, the units and the order of the values."
)

_MAX_LISTED = 6  # bounds in a sentence


class OutsideShare(NamedTuple):
    """An unbiased estimate of the share of people outside, which noise can make negative, and its standard error."""

    value: float
    error: float


class EdgeShare(NamedTuple):
    """An estimate of the share of people at the bounds beyond what the neighbouring cells explain.

    Attributes
    ----------
    value, error : float
        The share in [0, 1], and its standard error.
    sides : tuple of pairs of int
        The features and bounds concerned: -1 for the lower bound and 1 for the upper one.
    """

    value: float
    error: float
    sides: tuple[tuple[int, int], ...]


def with_outside_share(model: ClusterModel, share: OutsideShare, received_per_used: float) -> ClusterModel:
    """Return a model of the people inside with the share of those outside, a warning from 5 % on, and its verdict.

    The diagnostic `n_reports` and the warnings name the number of reports. `n_reports_inside` is the number that the
    fit used: with so many reports of people inside alone, its estimates would have the same errors.

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
        received = round(used * received_per_used)
        diagnostics |= {"n_reports": received, "n_reports_inside": used}
        warnings = [each.replace(f"{used} reports are few", f"{received} reports are few") for each in warnings]
    return replace(
        model,
        outside_share=min(max(share.value, 0.0), 1.0),
        outside_share_error=min(share.error, 1.0),
        verdict=verdict,
        verdict_reason=model.verdict_reason if verdict is model.verdict else OUTSIDE_REASON,
        warnings=tuple(warnings),
        diagnostics=diagnostics,
    )


def with_edge_share(model: ClusterModel, share: EdgeShare | None, *, is_searched: bool = True) -> ClusterModel:
    """Return a model with the share of people at the bounds, and from 5 % on a warning and a verdict below `reliable`.

    Parameters
    ----------
    model : ClusterModel
        Fitted to values that could have been moved to the bounds.
    share : EdgeShare or None
        None if no bound stands out from its neighbours.
    is_searched : bool
        Whether the released values show people at the bounds. If they do not, and there is no share, the diagnostic
        `edge_share` is null.
    """
    if share is None:
        return model if is_searched else replace(model, diagnostics={**model.diagnostics, "edge_share": None})
    sides = [f"{'lower' if side < 0 else 'upper'} bound of {model.features[place].name}" for place, side in share.sides]
    stated = {"value": share.value, "error": share.error, "bounds": sides}
    model = replace(model, diagnostics={**model.diagnostics, "edge_share": stated})
    if share.value < STATED:
        return model
    verdict = model.verdict.or_worse(Verdict.UNCERTAIN)
    return replace(
        model,
        verdict=verdict,
        verdict_reason=model.verdict_reason if verdict is model.verdict else EDGE_REASON,
        warnings=(_edge_sentence(share, sides), *model.warnings),
    )


def edge_share_of_centres(model: ClusterModel) -> EdgeShare | None:
    """Return the share of the clusters with their centre at a bound, or None if there is none.

    Clipped values of one feature lie at one place, so that a cluster of them has its centre there. Centres that the
    fit itself moved to the bounds have large errors and do not count.
    """
    if model.type != "centroids" or model.centroids is None:
        return None
    errors = np.zeros_like(model.centroids) if model.centroid_errors is None else model.centroid_errors
    scaled = scale_many(model.features, model.centroids)
    errors = scale_errors(model.features, model.centroids, errors)
    numeric = slice(model.n_numeric)  # shares of categories end within their bounds
    scaled[:, endless_of(model.features)] = 0.5  # away from the bounds
    return edge_share_of(scaled[:, numeric], errors[:, numeric], model.sizes, model.size_errors)


def edge_share_of(
    centres: NDArray[np.float64],
    centre_errors: NDArray[np.float64],
    sizes: NDArray[np.float64],
    size_errors: NDArray[np.float64],
) -> EdgeShare | None:
    """Return the share of the clusters with their centre at a bound, or None if there is none.

    Parameters
    ----------
    centres, centre_errors : ndarray of shape (k, d)
        In the scaled box.
    sizes, size_errors : ndarray of shape (k,)
    """
    sharp = centre_errors <= 2 * AT_BOUND
    at = {-1: (centres <= AT_BOUND) & sharp, 1: (centres >= 1 - AT_BOUND) & sharp}
    found = (at[-1] | at[1]).any(axis=1)
    if not found.any():
        return None
    sides = {(int(place), side) for side, mask in at.items() for place in np.flatnonzero(mask.any(axis=0))}
    share, error = float(sizes[found].sum()), float(np.sqrt((size_errors[found] ** 2).sum()))
    return EdgeShare(min(max(share, 0.0), 1.0), error, tuple(sorted(sides)))


def _edge_sentence(share: EdgeShare, sides: list[str]) -> str:
    more = f" and {len(sides) - _MAX_LISTED} more" if len(sides) > _MAX_LISTED else ""
    return (
        f"About {_percent(share.value)} (± {_percent(share.error)}) of the people are at the bounds, more than their "
        f"neighbours explain: {', '.join(sides[:_MAX_LISTED])}{more}. Values outside of the bounds are moved there "
        "and can make clusters. Check the bounds, the units and the order of the values."
    )


def _sentence(share: OutsideShare) -> str:
    return (
        f"About {_percent(share.value)} (± {_percent(share.error)}) of the people are outside of the bounds. The "
        "result and its shares describe those inside. Check the bounds, the units and the order of the values."
    )


def _percent(share: float) -> str:
    percent = 100 * min(max(share, 0.0), 1.0)
    return f"{percent:.2g} %" if percent < 99.5 else "100 %"
