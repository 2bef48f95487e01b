"""`shifted_grid`: one round through shifted coarse grids, deconvolved, cut by excess of mass (STATISTICS 3.2)."""

from collections.abc import Sequence
from math import ceil, isfinite

from clustering.decoders import Decoder, decoder, mass_noise, signal_of
from clustering.deconvolution import MORE_STEPS, STEPS, Deconvolved, deconvolve
from clustering.errors import TooFewReports, UnfitRound
from clustering.excess_mass import Bump, above_saddle, bumps, regions
from clustering.label_regions import label_map_model
from clustering.plan import Collected, Plan, Tally
from clustering.shifted_field import SAMPLING_VARIANCE, field, size_errors
from sfumato.accounting import exp_epsilon, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import Feature, RoundSpec, ShiftedGrid, ShiftedGridEncoding

MAX_FEATURES = 3
MAX_FINE_CELLS = 1 << 19  # of the label map: what a fit takes in seconds
MIN_EFFECTIVE_REPORTS = 1e4  # below this the number of clusters is not to be told
MAX_JSON_INT = (1 << 53) - 1

# What counts as a cluster when their number is left open, and what is said of one.
MIN_EXCESS = 0.01  # E, share of all people
MIN_CONTRAST = 0.35  # E/S, share of the cluster above the saddle to its neighbour
NOISE_FACTOR = 8.0  # E in δ, the mass that noise can fake
COUNTED_ERRORS = 1.5  # E in its standard errors, to be counted
DETECTABLE_ERRORS = 2.0  # to be called detectable

# N_eff below which; s for one, two and three features. Two: STATISTICS 3.2. One and three were
# measured: one feature is flat from 12 to 64, three lose by s=8 below 1e5 and by s=10 below 4e5.
_CELLS_BY_EFFECTIVE_REPORTS = ((1e5, (16, 8, 5)), (4e5, (24, 12, 6)), (float("inf"), (32, 16, 8)))


def shifted_grid(params: ShiftedGrid, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round at the full epsilon, for every draw, then `fit`.

    Parameters
    ----------
    params : ShiftedGrid
    features : tuple of Feature
        One to three.
    expected_reports : int
        Chooses s where `params.cells` does not.

    Raises
    ------
    InvalidSpec
        Another number of features, or a grid too large to fit.
    TooFewReports, UnfitRound
        From `fit`.
    """
    if not 1 <= len(features) <= MAX_FEATURES:
        raise InvalidSpec(f"shifted_grid takes 1 to {MAX_FEATURES} features")
    epsilon_nano = parse_epsilon(params.epsilon)
    cells = params.cells or choose_cells(len(features), expected_reports, epsilon_nano)
    encoding = ShiftedGridEncoding(len(features), cells, params.shifts)
    if encoding.fine_cells**encoding.n_features > MAX_FINE_CELLS:
        raise InvalidSpec(f"cells and shifts make more than {MAX_FINE_CELLS} fine cells")
    collected = yield RoundSpec(features, encoding, design("auto", encoding.n_symbols, epsilon_nano))
    return fit(params, collected)


def choose_cells(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """s, coarse cells per feature, by N_eff = N (e^eps - 1)^2 / (4 e^eps)."""
    effective = n_reports * signal_of(exp_epsilon(epsilon_nano))
    return next(cells for below, cells in _CELLS_BY_EFFECTIVE_REPORTS if effective < below)[n_features - 1]


def fit(params: ShiftedGrid, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose encoding and mechanism are taken as published.

    `params` gives the number of clusters and the prior; v comes from the published
    mechanism and N from the tally, whatever the plan asked for.

    Returns
    -------
    ClusterModel
        A label map over the fine grid, clusters by descending size. Diagnostics: n_reports;
        n_eff (null where nothing was perturbed); reports_needed (for n_eff = 1e4);
        low_confidence (n_eff is less: then an open number of clusters is answered by one);
        delta (the mass noise can fake); excess_mass (E, at a cluster's first contact with
        another), its standard error and detectable (E >= 8 delta and twice that error) per
        cluster; coarse_cells and fine_cells per feature; iterations and converged of the fit.

    Raises
    ------
    TooFewReports
        The round brought nothing.
    UnfitRound
        The round is not a shifted grid over one to three features, or tells nothing.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, ShiftedGridEncoding) or encoding.n_features > MAX_FEATURES:
        raise UnfitRound(f"shifted_grid goes on from a shifted grid over 1 to {MAX_FEATURES} features")
    if encoding.fine_cells**encoding.n_features > MAX_FINE_CELLS:
        raise UnfitRound(f"a round of more than {MAX_FINE_CELLS} fine cells cannot be fitted")
    n_reports = tally.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(collected.spec.mechanism)
    fitted = _fitted(params, encoding, reading, tally)
    n_eff = n_reports * reading.signal
    needed = min(max(1, ceil(MIN_EFFECTIVE_REPORTS / reading.signal)), MAX_JSON_INT)
    low_confidence = n_eff < MIN_EFFECTIVE_REPORTS
    delta = mass_noise(n_reports, reading.contrast)

    found = bumps(fitted.density)
    if params.clusters is not None:
        kept = found[: params.clusters]
    elif low_confidence:
        kept = found[:1]
    else:
        kept = _count(found, fitted, delta)
    cut = regions(fitted.density, kept)
    errors = [0.0 if bump.saddle is None else _excess_error(fitted, bump) for bump in cut.bumps]
    detectable = [
        bump.saddle is None or bump.excess >= max(NOISE_FACTOR * delta, DETECTABLE_ERRORS * error)
        for bump, error in zip(cut.bumps, errors, strict=True)
    ]
    return label_map_model(
        collected.spec.features,
        cut.labels,
        fitted.density,
        size_errors(encoding, reading, tally, cut.labels, fitted.density),
        {
            "n_reports": n_reports,
            "n_eff": n_eff if isfinite(n_eff) else None,
            "reports_needed": needed,
            "low_confidence": low_confidence,
            "delta": delta,
            "excess_mass": [bump.excess for bump in cut.bumps],
            "excess_mass_errors": errors,
            "detectable": detectable,
            "coarse_cells": encoding.cells,
            "fine_cells": encoding.fine_cells,
            "iterations": fitted.steps,
            "converged": fitted.converged,
        },
        _warnings(params.clusters, detectable, n_reports, needed, low_confidence),
    )


def _fitted(params: ShiftedGrid, encoding: ShiftedGridEncoding, reading: Decoder, tally: Tally) -> Deconvolved:
    """The density; fitted longer if it has fewer bumps than the clusters that are known to be there.

    A few small clusters beside heavy ones take more steps (unbalance, a million reports at
    epsilon 4, 8 clusters: 4 bumps after 60 steps, 8 after 300).
    """
    observed = field(encoding, reading, tally)
    for steps in (STEPS, MORE_STEPS):
        fitted = deconvolve(
            observed,
            shifts=encoding.shifts,
            precision=tally.n_reports / (reading.zero_variance + SAMPLING_VARIANCE),
            length_scale=params.length_scale,
            amplitude=params.amplitude,
            steps=steps,
        )
        if fitted.converged or params.clusters is None or len(bumps(fitted.density)) >= params.clusters:
            break
    return fitted


def _count(found: Sequence[Bump], fitted: Deconvolved, delta: float) -> list[Bump]:
    """The bumps that are clusters when nobody said how many there are.

    E >= max(.01, 8 δ) and E/S >= .35 (STATISTICS 3.2), and E >= 1.5 of its own standard
    errors: people spread evenly (50,000 to 150,000, epsilon .5 to 2) were counted as 2.2 to
    5.2 clusters by the first two alone and as 1.0 to 2.4 with the third, which cost
    .01 of mean ARI over 16 sets.
    """
    least = max(MIN_EXCESS, NOISE_FACTOR * delta)
    return [
        bump
        for bump in found
        if bump.saddle is None
        or (
            bump.excess >= max(least, MIN_CONTRAST * bump.mass)
            and bump.excess >= COUNTED_ERRORS * _excess_error(fitted, bump)
        )
    ]


def _excess_error(fitted: Deconvolved, bump: Bump) -> float:
    """Standard error of E by noise, the cells of the bump and its saddle held fixed."""
    return fitted.standard_error(above_saddle(fitted.density, bump))


def _warnings(
    clusters: int | None, detectable: Sequence[bool], n_reports: int, needed: int, low_confidence: bool
) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = []
    if low_confidence and clusters is None:
        said.append(
            f"{n_reports} reports at this epsilon are too few to count clusters, so everybody is put in one; "
            f"about {needed} would do, or name the number of clusters."
        )
    elif low_confidence:
        said.append(f"{n_reports} reports are few at this epsilon; about {needed} would make for a steady result.")
    if clusters is not None and len(detectable) < clusters:
        said.append(f"{clusters} clusters were asked for, but the density has only {len(detectable)} bumps.")
    if not all(detectable):
        doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
        said.append(f"Clusters that noise could have made, by their excess mass: {doubtful}.")
    return tuple(said)
