"""People outside of the bounds: their share, estimated from a round that counts them, and the round of those inside.

A plan never sees that a round counts people outside. It receives the tally that the people inside alone would have
given, through the same kind of mechanism without the additional symbol. Let o be the share outside. The frequency of a
symbol among the people inside is f / (1 - o), and (f - o/k) / (1 - o) for phases and signs, where people outside send
a uniform symbol. Its error from the mechanism grows by 1 / (1 - o). The tally therefore has n (1 - o)^2 of the n
reports, so that a decoder states this error. It overstates the error of sampling by at most 1 / (1 - o).

Vectors of people outside are recognised by their mark, with errors. See `_inside_vectors`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.edges import EdgeGrid, find_edge_share, shows_edges
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected, Plan
from clustering.rounds.tally import Sample, Tally, keeps_vectors, noise_of
from sfumato.mechanisms import resize
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.outside import UNSEEN, OutsideShare, edge_share_of_centres, with_edge_share, with_outside_share
from sfumato.records.encodings import shift_of
from sfumato.records.outside import count_outside, is_reference
from sfumato.specs import (
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    Feature,
    GridEncoding,
    Mechanism,
    PhaseEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    endless_of,
)


def counting_outside(plan: Plan, *, opens_counting: bool, may_clip: bool = True) -> Plan:
    """Return a plan with rounds that count people outside, and with a result that states their share.

    A result of other rounds states the share of people at the bounds, if it stands out. It warns if its rounds do not
    show this share.

    Parameters
    ----------
    plan : Plan
        A plan that has not started. It receives the rounds of the people inside.
    opens_counting : bool
        Whether the rounds that the plan yields are published with `out_of_bounds` "count". Rounds that were published
        earlier are read as they are: one without it has no share outside.
    may_clip : bool
        Whether devices moved values to the bounds in rounds that do not count people outside.
    """
    estimates: list[OutsideShare] = []
    grids: list[EdgeGrid] = []
    features: tuple[Feature, ...] = ()
    searches = False  # whether the plan searches the bounds itself, and states the diagnostic if it cannot
    received = used = 0
    try:
        spec = next(plan)
        while True:
            collected = yield count_outside(spec) if opens_counting else spec
            received += collected.aggregate.n_reports
            if collected.spec.counts_outside:
                if collected.aggregate.n_reports:
                    estimates.append(outside_share(collected))
                collected = inside(collected, pooled(estimates) if estimates else OutsideShare(0.0, inf))
            else:
                grids += edge_grids(collected)
                features = collected.spec.features
                searches |= isinstance(collected.spec.encoding, PhaseEncoding)
            used += collected.aggregate.n_reports
            spec = plan.send(collected)
    except StopIteration as done:
        model: ClusterModel = done.value
        if estimates:
            return with_outside_share(model, pooled(estimates), received / used)
        if "edge_share" not in model.diagnostics:
            is_searched = searches or shows_edges(grids) or len(endless_of(features)) == len(features)
            model = with_edge_share(
                model, find_edge_share(grids) or edge_share_of_centres(model), is_searched=is_searched
            )
        if may_clip and model.diagnostics.get("edge_share", {}) is None:
            model = replace(model, warnings=(*model.warnings, UNSEEN))
        return model
    finally:
        plan.close()


def edge_grids(collected: Collected) -> Iterator[EdgeGrid]:
    """Yield the grids in which a round counted its reports, one for each shift. Other encodings have none."""
    encoding = collected.spec.encoding
    if not isinstance(encoding, GridEncoding | ShiftedGridEncoding):
        return
    reading = decoder(collected.spec.mechanism)
    frequencies, endless = reading.frequencies(collected.tally), endless_of(collected.spec.features)
    for slot, n in enumerate(collected.tally.reports.tolist()):
        if n == 0:
            continue
        noise = reading.spread_variance / n, max(reading.slope_variance + 1, 0.0) / n
        if isinstance(encoding, GridEncoding):
            shares, whole = frequencies[slot].reshape(encoding.cells), [1 / cells for cells in encoding.cells]
            yield EdgeGrid(shares, n, *noise, [(width, width) for width in whole], whole, endless)
            continue
        shifts = shift_of(encoding, slot)
        shares = frequencies[slot].reshape(*encoding.symbols_along, -1).sum(axis=-1)
        noise = noise[0] * prod(encoding.categories), noise[1]
        is_full = [shift > 0 or place in encoding.circles for place, shift in enumerate(shifts)]
        shares = shares[tuple(slice(None) if each else slice(-1) for each in is_full)]  # without empty cells
        fine = encoding.fine_cells
        widths = [((encoding.shifts - shift) / fine, (shift or encoding.shifts) / fine) for shift in shifts]
        yield EdgeGrid(shares, n, *noise, widths, [1 / encoding.cells] * encoding.n_features, endless)


def pooled(estimates: Sequence[OutsideShare]) -> OutsideShare:
    """Return the mean of independent estimates of one share, weighted by their inverse variances."""
    if any(each.error == 0 for each in estimates):  # reports are not perturbed, and none or all are outside
        return next(each for each in estimates if each.error == 0)
    weights = [each.error**-2 for each in estimates]
    if not sum(weights):
        return OutsideShare(0.0, inf)
    value = sum(weight * each.value for weight, each in zip(weights, estimates, strict=True)) / sum(weights)
    return OutsideShare(value, sum(weights) ** -0.5)


def outside_share(collected: Collected) -> OutsideShare:
    """Return the unbiased estimate of the share of people outside, with its standard error.

    It comes from the additional symbol, from the waves of weight zero, from the sign that is +1 for every person
    inside, or from the marks. The error is infinite if no report shows it, as in a round of phases without a
    wave of weight zero.

    Parameters
    ----------
    collected : Collected
        A round that counts people outside, with at least one report.
    """
    spec = collected.spec
    mechanism = spec.mechanism
    if keeps_vectors(spec):
        noise = noise_of(spec)
        marks = collected.sample.values[:, -1] / noise.mark
        variance = noise.variance() / noise.mark**2
        share = float(marks.mean())
        return OutsideShare(share, sqrt((variance + _coin(share)) / len(marks)))
    if spec.has_outside_symbol:
        reading, tally = decoder(mechanism), collected.tally
        share = float(tally.reports @ reading.frequencies(tally)[:, -1] / tally.n_reports)
        return OutsideShare(share, _error(reading, share, tally.n_reports))
    slots, own = _references(spec)
    reports = int(collected.tally.reports[slots].sum())
    if reports == 0:
        return OutsideShare(0.0, inf)
    tally = Tally(collected.tally.counts[slots].sum(axis=0, keepdims=True), np.array([reports], dtype=np.int64))
    return _share_of_references(mechanism, tally, own)


def _share_of_references(mechanism: Mechanism, tally: Tally, own: int) -> OutsideShare:
    """Return the share outside from reports for which all people inside have the symbol `own`, others a uniform one."""
    n, k = tally.n_reports, mechanism.n_symbols
    if not mechanism.has_support:
        chances = mechanism.offset_chances()
        likely = [t for t in range(k) if chances[t] == max(chances)]
        near = (np.array(likely) + own) % k
        kept, even = float(sum(chances[t] for t in likely)), len(likely) / k
        seen = float(tally.counts[0, near].sum() / n)
        return OutsideShare((kept - seen) / (kept - even), sqrt(_coin(seen) / n) / abs(kept - even))
    reading = decoder(mechanism)
    seen = float(reading.frequencies(tally)[0, own])
    return OutsideShare((1 - seen) / (1 - 1 / k), _error(reading, seen, n) / (1 - 1 / k))


def _error(reading: Decoder, frequency: float, n_reports: int) -> float:
    """Return the standard error of one estimated frequency: of the mechanism, and of the sample of people."""
    noise = reading.variance(min(max(frequency, 0.0), 1.0), n_reports)
    return sqrt(max(noise, 0.0) + _coin(frequency) / n_reports)


def _references(spec: RoundSpec) -> tuple[NDArray[np.int64], int]:
    """Return the slots in which all people inside have one symbol, and this symbol."""
    encoding = spec.encoding
    if isinstance(encoding, CentroidSignEncoding):  # beyond the last feature all people are above; row 0 is +1
        return np.array([encoding.n_features * encoding.n_rows]), 1
    assert isinstance(encoding, PhaseEncoding)  # noqa: S101 - for the type checker
    return np.flatnonzero([is_reference(row) for row in encoding.weights]), 0


def _coin(share: float) -> float:
    """Return the variance of a coin."""
    share = min(max(share, 0.0), 1.0)
    return share * (1 - share)


# ---- the round of the people inside ----


def inside(collected: Collected, share: OutsideShare) -> Collected:
    """Return the round as the people inside alone would have answered it.

    Parameters
    ----------
    collected : Collected
        A round that counts people outside.
    share : OutsideShare
        From this round and earlier ones of the same people. The share inside is taken as at least one standard error,
        so that a result exists even if nearly all people are outside.

    Returns
    -------
    Collected
        Its specification has the same encoding, without waves of weight zero, and `out_of_bounds` "clip".
    """
    spec = collected.spec
    if keeps_vectors(spec):
        return _inside_vectors(collected, noise_of(spec))
    n = collected.tally.n_reports
    remaining = max(1 - share.value, min(share.error, 1.0), 1 / max(n, 1)) if share.error < inf else 1.0
    if not spec.mechanism.has_support:
        return _inside_window(collected, remaining)
    own = decoder(spec.mechanism)
    found = own.frequencies(collected.tally)
    k = spec.encoding.n_symbols
    found = found[:, :k] / remaining if spec.has_outside_symbol else (found - (1 - remaining) / k) / remaining
    found += (1 - found.sum(axis=1, keepdims=True)) / k  # the sum is exact, as it is by construction without outside
    mechanism = _of_inside(spec)
    reading = decoder(mechanism)
    reports = _effective(collected.tally.reports, remaining, own, reading)
    return _without(collected, mechanism, _tally_of(reading, found, reports))


def _inside_window(collected: Collected, remaining: float) -> Collected:
    """Return the counts of windows less those of uniform symbols. A uniform symbol gives a uniform report."""
    tally, k = collected.tally, collected.spec.mechanism.n_symbols
    sent = tally.counts / np.maximum(tally.reports, 1)[:, None]
    reports = _rounded(tally.reports * min(remaining, 1.0) ** 2)
    counts = np.rint(reports[:, None] * (sent - (1 - remaining) / k) / remaining)
    counts = np.clip(counts, 0, reports[:, None]).astype(np.int64)
    # `frequencies` of a window do not exist, so the numbers of reports follow the rounded counts
    return _without(collected, collected.spec.mechanism, Tally(counts, counts.sum(axis=1)))


def _of_inside(spec: RoundSpec) -> Mechanism:
    mechanism = spec.mechanism
    if not spec.has_outside_symbol:
        return mechanism
    k = spec.encoding.n_symbols
    return resize(mechanism, k)


def _effective(reports: NDArray[np.int64], remaining: float, own: Decoder, reading: Decoder) -> NDArray[np.int64]:
    """Return the numbers of reports with which `reading` states the error of estimates divided by `remaining`."""
    part = min(remaining, 1.0)
    if own.zero_variance:
        part *= part * reading.zero_variance / own.zero_variance
    return _rounded(reports * part)


def _rounded(reports: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return whole numbers with nearly the same sum; at least one report remains where there are any."""
    ends = np.concatenate([[0], np.rint(np.cumsum(reports))]).astype(np.int64)
    whole = np.diff(ends)
    if reports.sum() > 0 and whole.sum() == 0:
        whole[int(np.argmax(reports))] = 1
    return whole


def _tally_of(reading: Decoder, frequencies: NDArray[np.float64], reports: NDArray[np.int64]) -> Tally:
    n = reports[:, None]
    sums = np.rint(np.cumsum(n * (reading.q + frequencies * (reading.p - reading.q)), axis=1))
    supports = np.diff(sums, axis=1, prepend=0.0)  # the sum over symbols is rounded once
    return Tally(reading.counts_of(np.clip(supports, 0, n).astype(np.int64), reports), reports)


def _without(collected: Collected, mechanism: Mechanism, tally: Tally) -> Collected:
    """Return the collected round with these parts, without waves of weight zero."""
    encoding = collected.spec.encoding
    if isinstance(encoding, PhaseEncoding):
        kept = np.flatnonzero([not is_reference(row) for row in encoding.weights])
        encoding = encoding.select(kept.tolist())
        tally = Tally(tally.counts[kept], tally.reports[kept])
    spec = replace(collected.spec, encoding=encoding, mechanism=mechanism, out_of_bounds="clip")
    return Collected(spec, tally, may_clip=False)


def _inside_vectors(collected: Collected, mechanism: DiscreteLaplaceMechanism) -> Collected:
    """Return the vectors with a mark nearer to that of people inside.

    A mark and its noise are independent of the features, so the selection does not change the distribution of the
    vectors of people inside. A vector of a person outside passes with the probability exp(-mark / (2 b)) / 2,
    with b the scale of the noise.
    """
    values = collected.sample.values
    kept = values[2 * values[:, -1] < mechanism.mark, :-1]
    if len(values) and not len(kept):
        kept = values[np.argmin(values[:, -1]), None, :-1]
    spec = replace(collected.spec, mechanism=replace(mechanism, mark=0), out_of_bounds="clip")
    low, high = -mechanism.margin, mechanism.steps + mechanism.margin
    return Collected(spec, Sample(np.ascontiguousarray(np.clip(kept, low, high))), may_clip=False)
