"""Synthetic rounds: a population sampled from a released density reports through a round's mechanism.

A plan run on synthetic rounds shows how noise changes its result (parametric bootstrap).
The input is a released density, so no report is read. The random generator has a public seed,
so that a result depends on its tallies alone.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.density.shifted_field import coarse_symbols
from clustering.errors import UnfitRound
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from sfumato.mechanisms import without_noise
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.records.encodings import symbols
from sfumato.specs import (
    Encoding,
    GridEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
)

SEED = 20_260  # public and arbitrary
HALVES = 1  # second number of the seed that divides counts into halves


@dataclass(frozen=True)
class SyntheticPopulation:
    """A synthetic population sampled from a density.

    Attributes
    ----------
    density : ndarray of shape (cells_1, .., cells_d), float64
        Non-negative, sums to one; uniform within a cell.
    reports : tuple of int, or int
        Number of reports of each round, or the population size. In the second case each round
        gets the share of its participation.
    sample : int
        Sample number.
    """

    density: NDArray[np.float64]
    reports: tuple[int, ...] | int
    sample: int = 0

    def collect(self, spec: RoundSpec, index: int, coins: int | None) -> Collected:
        """Return the tally of a round.

        The population is the same for all `coins`, so two tallies of a round differ only by the
        mechanism's noise.

        Parameters
        ----------
        spec : RoundSpec
        index : int
            Index of the round in its collection, from 0.
        coins : int or None
            Number of the noise sample. None gives unperturbed reports, and the published round
            states so, like ``simulate(perturb=False)``.

        Returns
        -------
        Collected
        """
        if isinstance(self.reports, int):
            lo, hi = (self.reports * end // DRAW_SPAN for end in (spec.participation.lo, spec.participation.hi))
            n_reports = hi - lo  # rounding keeps the total of disjoint rounds equal to the population
        else:
            n_reports = self.reports[index]
        shares = symbol_shares(spec.encoding, self.density)
        draw = np.random.default_rng([SEED, self.sample, index])
        n_slots = len(shares)
        reports = draw.multinomial(n_reports, np.full(n_slots, 1 / n_slots)).astype(np.int64)
        people = np.stack([draw.multinomial(n, share) for n, share in zip(reports, shares, strict=True)])
        if coins is None:
            spec = replace(spec, mechanism=without_noise(spec.mechanism))
            return Collected(spec, Tally(people.astype(np.int64), reports))
        noise = np.random.default_rng([SEED, self.sample, index, 1 + coins]).standard_normal(people.shape)
        return Collected(spec, perturb_counts(spec, people.astype(np.int64), reports, noise))


def perturb_counts(
    spec: RoundSpec, people: NDArray[np.int64], reports: NDArray[np.int64], noise: NDArray[np.float64]
) -> Tally:
    """Return the tally of perturbed reports, in the normal approximation.

    A symbol with c of n records is supported by c p + (n - c) q reports, with variance
    c p (1-p) + (n - c) q (1-q). If a report names a fixed number of symbols, the sum of the
    supports is fixed too.

    Parameters
    ----------
    spec : RoundSpec
    people : ndarray of shape (n_slots, n_symbols), int64
        Number of records with each symbol.
    reports : ndarray of shape (n_slots,), int64
    noise : ndarray of shape (n_slots, n_symbols), float64
        Standard normal values.
    """
    reading = decoder(spec.mechanism)
    p, q, n = reading.p, reading.q, reports[:, None]
    deviations = np.sqrt(people * (p * (1 - p)) + (n - people) * (q * (1 - q))) * noise
    if reading.has_fixed_size:
        deviations -= deviations.mean(axis=1, keepdims=True)
    supports = np.clip(np.rint(people * p + (n - people) * q + deviations), 0, n).astype(np.int64)
    return Tally(reading.counts_of(supports, reports), reports)


def halve(collected: Collected) -> tuple[Collected, Collected]:
    """Return the tallies of two halves of the reports of a round, made from the tally alone.

    A half has n/2 of the n reports of a slot, rounded up in every second slot. It contains a number of the C reports
    that support a symbol, which is hypergeometric. The normal approximation has the variance C (n - C) / (4 (n - 1)).
    If a report names a fixed number of symbols, the sum of the supports is fixed, which conditions the deviations.
    This is post-processing of the tally and costs no privacy budget.

    Parameters
    ----------
    collected : Collected
        A round with a tally.
    """
    counts, reports = collected.tally.counts, collected.tally.reports
    reading = decoder(collected.spec.mechanism)
    n, first = reports[:, None], (reports + np.arange(len(reports)) % 2)[:, None] // 2
    variances = counts * (n - counts) / np.maximum(4 * (n - 1), 1)
    deviations = np.sqrt(variances) * np.random.default_rng([SEED, HALVES]).standard_normal(counts.shape)
    if reading.has_fixed_size or reading.n_coefficients:
        parts = variances / np.maximum(variances.sum(axis=1, keepdims=True), 1e-9)
        deviations -= parts * deviations.sum(axis=1, keepdims=True)
    half = np.rint(counts * (first / np.maximum(n, 1)) + deviations)
    half = np.clip(half, np.maximum(counts - (n - first), 0), np.minimum(counts, first)).astype(np.int64)
    return (
        Collected(collected.spec, Tally(half, first[:, 0])),
        Collected(collected.spec, Tally(counts - half, reports - first[:, 0])),
    )


def symbol_shares(encoding: Encoding, density: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the population with each symbol in each slot: shape (n_slots, n_symbols).

    Parameters
    ----------
    encoding : Encoding
        A plain, shifted or tree grid.
    density : ndarray

    Raises
    ------
    UnfitRound
        The encoding has no cells.
    """
    if isinstance(encoding, ShiftedGridEncoding):
        fine = resample(density, encoding.fine_shape).ravel()
        by_slot = [coarse_symbols(encoding, slot).ravel() for slot in range(encoding.n_slots)]
        return np.stack([_shares(np.bincount(s, weights=fine, minlength=encoding.n_symbols)) for s in by_slot])
    if isinstance(encoding, GridEncoding):
        return _shares(resample(density, encoding.cells).ravel())[None]
    if not isinstance(encoding, TreeGridEncoding):
        raise UnfitRound("a synthetic round must have a plain, shifted or tree grid")
    boxes = (1 << encoding.depth,) * encoding.n_features
    middles = (np.indices(boxes).reshape(len(boxes), -1).T + 0.5) / boxes[0]
    of_box = symbols(encoding, middles, np.zeros(len(middles), dtype=np.int64))
    mass = resample(density, boxes).ravel()
    return _shares(np.bincount(of_box, weights=mass, minlength=encoding.n_symbols))[None]


def _shares(mass: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mass scaled to sum one, as sampling requires."""
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def resample(density: NDArray[np.float64], cells: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mass in each cell of another grid, for a density that is uniform within its cells."""
    for axis, n_cells in enumerate(cells):
        n_own = density.shape[axis]
        if n_own != n_cells:
            density = _mass_between(density, axis, np.arange(n_cells + 1) * (n_own / n_cells))
    return density


def _mass_between(density: NDArray[np.float64], axis: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mass between edges along one axis; `at` has units of the density's cells."""
    swapped = np.moveaxis(density, axis, -1)
    upto = np.concatenate([np.zeros((*swapped.shape[:-1], 1)), swapped.cumsum(axis=-1)], axis=-1)
    whole = np.minimum(at.astype(np.int64), swapped.shape[-1])
    part = at - whole
    beyond = np.concatenate([swapped, np.zeros((*swapped.shape[:-1], 1))], axis=-1)
    mass = upto[..., whole] + part * beyond[..., whole]
    return np.moveaxis(np.diff(mass, axis=-1).clip(0), -1, axis)
