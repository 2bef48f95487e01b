"""Synthetic rounds: people drawn from a released density answer a round through its mechanism.

What a plan makes of them tells how far noise moves what the plan makes of anybody (a
parametric bootstrap). Nobody's report is looked at: a released density goes in. So its
randomness need not be a device's: the generator is seeded with a public constant, that a
result follows from its tallies alone.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder, decoder
from clustering.errors import UnfitRound
from clustering.kernels.walsh import walsh_hadamard
from clustering.plan import Collected, Tally
from clustering.shifted_field import coarse_symbols
from sfumato.accounting import DRAW_SPAN
from sfumato.encodings import symbols
from sfumato.mechanisms import tally_width
from sfumato.specs import (
    Encoding,
    GridEncoding,
    GrrMechanism,
    HrMechanism,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
)

SEED = 20_260  # public; any would do


@dataclass(frozen=True)
class People:
    """Synthetic people behind a density.

    Attributes
    ----------
    density : ndarray of shape (cells_1, .., cells_d), float64
        Non-negative, of sum one; even within a cell.
    reports : tuple of int, or int
        How many answer each round; or how many people there are, of whom a round has those of
        its draws.
    sample : int
        Which sample of people.
    """

    density: NDArray[np.float64]
    reports: tuple[int, ...] | int
    sample: int = 0

    def answer(self, spec: RoundSpec, index: int, coins: int | None) -> Collected:
        """The tally of a round.

        The same people answer whatever the coins, so that two answers to a round differ by
        the mechanism's noise alone.

        Parameters
        ----------
        spec : RoundSpec
        index : int
            Which round of its collection, from 0.
        coins : int or None
            Which throw of the devices' coins. None: nothing is perturbed, and the published
            round says so, as in ``simulate(perturb=False)``.
        """
        if isinstance(self.reports, int):
            lo, hi = (self.reports * end // DRAW_SPAN for end in (spec.draw.lo, spec.draw.hi))
            n_reports = hi - lo  # so that rounds for all draws have all people between them
        else:
            n_reports = self.reports[index]
        shares = symbol_shares(spec.encoding, self.density)
        draw = np.random.default_rng([SEED, self.sample, index])
        n_slots = len(shares)
        reports = draw.multinomial(n_reports, np.full(n_slots, 1 / n_slots)).astype(np.int64)
        people = np.stack([draw.multinomial(n, share) for n, share in zip(reports, shares, strict=True)])
        if coins is None:
            spec = replace(spec, mechanism=GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN))
            return Collected(spec, Tally(people.astype(np.int64), reports))
        noise = np.random.default_rng([SEED, self.sample, index, 1 + coins]).standard_normal(people.shape)
        return Collected(spec, perturbed(spec, people.astype(np.int64), reports, noise))


def perturbed(
    spec: RoundSpec, people: NDArray[np.int64], reports: NDArray[np.int64], noise: NDArray[np.float64]
) -> Tally:
    """The tally of people whose reports are perturbed, by the normal approximation.

    A symbol with c of n people is supported by c p + (n - c) q reports, with variance
    c p (1-p) + (n - c) q (1-q); where a report names a fixed number of symbols, so do all
    supports together.

    Parameters
    ----------
    people : ndarray of shape (n_slots, n_symbols), int64
    reports : ndarray of shape (n_slots,), int64
    noise : ndarray of shape (n_slots, n_symbols), float64
        Standard normal.
    """
    reading = decoder(spec.mechanism)
    p, q, n = reading.p, reading.q, reports[:, None]
    deviations = np.sqrt(people * (p * (1 - p)) + (n - people) * (q * (1 - q))) * noise
    if reading.names_so_many:
        deviations -= deviations.mean(axis=1, keepdims=True)
    supports = np.clip(np.rint(people * p + (n - people) * q + deviations), 0, n).astype(np.int64)
    return Tally(_as_counted(spec, reading, supports, reports), reports)


def _as_counted(
    spec: RoundSpec, reading: Decoder, supports: NDArray[np.int64], reports: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Supports of symbols, or the signs of Walsh coefficients that make them."""
    if not isinstance(spec.mechanism, HrMechanism):
        return supports
    counts = np.zeros((len(reports), tally_width(spec.mechanism)), dtype=np.int64)
    for slot, row in enumerate(supports):
        signs = np.zeros(reading.n_coefficients, dtype=np.int64)
        signs[1 : len(row) + 1] = 2 * row - reports[slot]
        walsh_hadamard(signs)  # its own inverse, but for a factor
        signs = np.rint(signs / reading.n_coefficients).astype(np.int64)
        counts[slot, 0::2], counts[slot, 1::2] = signs.clip(0), (-signs).clip(0)
    return counts


def symbol_shares(encoding: Encoding, density: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of people who have each symbol under each slot: shape (n_slots, n_symbols).

    Parameters
    ----------
    encoding : Encoding
        Of cells over the box: a plain, a shifted or a tree grid.
    density : ndarray
    """
    if isinstance(encoding, ShiftedGridEncoding):
        fine = resampled(density, (encoding.fine_cells,) * encoding.n_features).ravel()
        by_slot = [coarse_symbols(encoding, slot).ravel() for slot in range(encoding.n_slots)]
        return np.stack([_shares(np.bincount(s, weights=fine, minlength=encoding.n_symbols)) for s in by_slot])
    if isinstance(encoding, GridEncoding):
        return _shares(resampled(density, encoding.cells).ravel())[None]
    if not isinstance(encoding, TreeGridEncoding):
        raise UnfitRound("synthetic people answer rounds over cells")
    boxes = (1 << encoding.depth,) * encoding.n_features
    middles = (np.indices(boxes).reshape(len(boxes), -1).T + 0.5) / boxes[0]
    of_box = symbols(encoding, middles, np.zeros(len(middles), dtype=np.int64))
    mass = resampled(density, boxes).ravel()
    return _shares(np.bincount(of_box, weights=mass, minlength=encoding.n_symbols))[None]


def _shares(mass: NDArray[Any]) -> NDArray[np.float64]:
    """Of sum one, as drawing from them wants it."""
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def resampled(density: NDArray[np.float64], cells: tuple[int, ...]) -> NDArray[np.float64]:
    """The mass in each cell of another grid, of a density that is even within its own cells."""
    for axis, n_cells in enumerate(cells):
        n_own = density.shape[axis]
        if n_own != n_cells:
            density = _between(density, axis, np.arange(n_cells + 1) * (n_own / n_cells))
    return density


def _between(density: NDArray[np.float64], axis: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mass between edges, given in units of own cells, along one axis."""
    moved = np.moveaxis(density, axis, -1)
    upto = np.concatenate([np.zeros((*moved.shape[:-1], 1)), moved.cumsum(axis=-1)], axis=-1)
    whole = np.minimum(at.astype(np.int64), moved.shape[-1])
    part = at - whole
    beyond = np.concatenate([moved, np.zeros((*moved.shape[:-1], 1))], axis=-1)
    mass = upto[..., whole] + part * beyond[..., whole]
    return np.moveaxis(np.diff(mass, axis=-1).clip(0), -1, axis)
