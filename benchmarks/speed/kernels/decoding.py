"""Decoding: from reports to shares, and from a blurred field to a density."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import correlate1d
from scipy.optimize import minimize

from benchmarks.peers.peer import Peer
from benchmarks.speed.harness.measurement import (
    Disagreement,
    Measurement,
    Setting,
    alternate,
    compare,
    near,
    race,
    seconds,
)
from clustering.density.deconvolution import deconvolve, prior_deviations
from clustering.random import SeededEntropy
from clustering.rounds.counting import count
from clustering.rounds.decoders import decoder
from sfumato.mechanisms import design
from sfumato.mechanisms.base import read_numbers
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, Participation, RoundSpec

Floats = NDArray[np.float64]

LIMIT_HR_SECONDS = 0.5  # seconds for 2^20 cells and a million reports
LIMIT_SS_SECONDS = 5.0  # seconds for ten million reports over 169 cells
MORE_STEPS = 1000  # most steps of the reference for the deconvolution


@dataclass(frozen=True)
class People:
    """The people of a round: a symbol each."""

    spec: RoundSpec
    symbols: NDArray[np.int64]

    @classmethod
    def sample(cls, kind: str, cells: tuple[int, ...], epsilon: float, n: int) -> "People":
        """Draw people, most of them in few cells, some in each."""
        encoding = GridEncoding(cells)
        mechanism = design(kind, encoding.n_symbols, int(epsilon * NANO))
        features = tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(len(cells)))
        places = np.random.default_rng(1).beta(0.5, 3.0, n)
        symbols = np.minimum((places * encoding.n_symbols).astype(np.int64), encoding.n_symbols - 1)
        return cls(RoundSpec(features, encoding, mechanism, Participation.between(0.0, 1.0)), symbols)

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return self.spec.encoding.n_symbols

    @property
    def truth(self) -> Floats:
        """Return the true share of each cell."""
        counts = np.bincount(self.symbols, minlength=self.n_cells)
        return np.asarray(counts / len(self.symbols), dtype=np.float64)

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the noise of the largest share."""
        return float(np.sqrt(decoder(self.spec.mechanism).variance(float(self.truth.max()), len(self.symbols))))

    def check(self, what: str, shares: Floats) -> None:
        """Raise Disagreement if shares differ from the truth by more than their noise."""
        near(what, shares, self.truth, self.deviation)

    def reports(self, repeats: int = 1) -> NDArray[np.uint8]:
        """Return the perturbed report of each person, repeated to save time if there must be more."""
        values = self.spec.mechanism.perturb_many(self.symbols, SeededEntropy(2))
        return np.tile(values, (repeats, 1)) if repeats > 1 else values

    def shares(self, values: NDArray[np.uint8]) -> Floats:
        """Count and decode reports."""
        tally = count(self.spec, np.zeros(len(values), dtype=np.int64), values)
        return np.asarray(decoder(self.spec.mechanism).frequencies(tally)[0], dtype=np.float64)


def rows(setting: Setting, peer: Peer) -> Iterator[Measurement]:
    """Yield randomised response, local hashing, Hadamard response, subsets, and the field."""
    yield _response(setting, peer)
    yield _hashed(setting)
    yield _signs(setting)
    yield _subsets(setting)
    yield from _field(setting)


def _row(
    setting: Setting,
    kind: str,
    people: People,
    values: NDArray[np.uint8],
    reference: str,
    theirs: Callable[[], float],
    *,
    bar: float = 1.0,
    note: str,
) -> Measurement:
    """Compare counting and decoding of these reports with the seconds of a reference."""
    measured = alternate(lambda: seconds(lambda: people.shares(values)), theirs, setting.turns)
    name = f"{kind}, {len(values):,} reports over {people.n_cells:,} cells, counted and decoded"
    return compare(name, reference, measured, bar=bar, note=note)


def _response(setting: Setting, peer: Peer) -> Measurement:
    people = People.sample("grr", (128,), 2.0, 100_000 if setting.quick else 1_000_000)
    values = people.reports()
    symbols = read_numbers(values)
    peer.send("ids", np.zeros((len(values), 2), dtype=np.uint64))
    peer.send("symbols", symbols)
    peer.call("store_reports", "ids", "symbols", threads=1, library="duckdb")
    count_there = partial(peer.call, "count_reports", distinct=False, library="duckdb")
    if count_there().value.tolist() != np.bincount(symbols).tolist():
        raise Disagreement("DuckDB counts other numbers of reports")
    library = f"DuckDB {peer.version('duckdb')}, counting alone"
    note = "no maintained library decodes reports of local privacy; the peer groups the reported symbols"
    return _row(setting, "grr", people, values, library, lambda: count_there().seconds, note=note)


def _hashed(setting: Setting) -> Measurement:
    people = People.sample("olh", (128,), 2.0, 2_000 if setting.quick else 20_000)
    values = people.reports()
    people.check("shares", people.shares(values))
    mechanism, symbols = people.spec.mechanism, np.arange(people.n_cells)

    def plain() -> None:
        mechanism.supports(values, symbols).sum(axis=0)

    note = "no maintained library decodes reports of local privacy; numpy computes all hashes at once"
    return _row(setting, "olh", people, values, "numpy, counting alone", lambda: seconds(plain), note=note)


def _signs(setting: Setting) -> Measurement:
    """Compare 2^20 cells with the time limit."""
    side, n = (1 << 9, 200_000) if setting.quick else (1 << 10, 1_000_000)
    people = People.sample("hr", (side, side), 1.0, n)
    values = people.reports()
    people.check("shares", people.shares(values))
    limit = LIMIT_HR_SECONDS * n / 1_000_000
    note = "half a second for 2^20 cells and a million reports, scaled to the number of reports"
    return _row(setting, "hr", people, values, f"the limit of {limit:g} s", lambda: limit, note=note)


def _subsets(setting: Setting) -> Measurement:
    """Compare ten million reports, which repeat those of 250,000 people, with the time limit."""
    people = People.sample("ss", (13, 13), 1.0, 250_000)
    values = people.reports(4 if setting.quick else 40)
    people.check("shares", people.shares(values))
    limit = LIMIT_SS_SECONDS * len(values) / 10_000_000
    note = "on one core; a quarter of a million reports in memory, repeated"
    return _row(setting, "ss", people, values, f"the limit of {limit:g} s", lambda: limit, note=note)


def _field(setting: Setting) -> Iterator[Measurement]:
    """Compare the deconvolution of a blurred, noisy field of three bumps in two and three features."""
    for cells, n_features, shifts in ((64, 2, 6), (16, 3, 4)) if setting.quick else ((96, 2, 8), (32, 3, 4)):
        seen, precision = _seen(cells, n_features, shifts)
        given: dict[str, Any] = {
            "shifts": shifts, "precision": precision, "length_scale": 0.06, "amplitude": 2.0,
        }  # fmt: skip
        ours = partial(deconvolve, seen, **given, steps=None)
        theirs = partial(plain_fit, seen, **given, steps=MORE_STEPS)
        gap = (ours().loss - theirs()) / abs(theirs())
        if not gap <= 1e-3:
            raise Disagreement(f"loss: higher by {gap:.2g} of the reference's")
        reference = "scipy L-BFGS-B over all coefficients, transforms and filters of scipy alone"
        note = f"the reference to its end or {MORE_STEPS} steps; our loss is the reference's or less (within .1 %)"
        yield race(
            f"field of {cells}^{n_features} cells deconvolved", reference, ours, theirs, setting.turns, note=note
        )


def _seen(cells: int, n_features: int, shifts: int) -> tuple[Floats, float]:
    rng = np.random.default_rng(6)
    middles = (np.indices((cells,) * n_features).reshape(n_features, -1).T + 0.5) / cells
    density = sum(
        np.exp(-((middles - centre) ** 2).sum(axis=1) / 0.01) for centre in rng.uniform(0.2, 0.8, (3, n_features))
    )
    truth = (np.asarray(density) / np.sum(density)).reshape((cells,) * n_features)
    blurred = _blurred(truth, shifts)
    n_eff = 1e5
    return blurred + rng.normal(0, 1e-2 * blurred.max(), blurred.shape), n_eff


def _blurred(density: Floats, shifts: int) -> Floats:
    triangle = 1 - np.abs(np.arange(1 - shifts, shifts)) / shifts
    for axis in range(density.ndim):
        density = correlate1d(density, triangle, axis=axis, mode="constant")
    return density


def plain_fit(
    observed: Floats, *, shifts: int, precision: float, length_scale: float, amplitude: float, steps: int
) -> float:
    """Minimise the loss by its definition: precision (½ f·Tf - f·F) + ½ |u|², f = softmax(IDCT(sqrt(S) u))."""
    deviations = prior_deviations(observed.shape, length_scale, amplitude)

    def loss(u: Floats) -> tuple[float, Floats]:
        g = idctn(deviations * u.reshape(observed.shape), norm="ortho")
        weights = np.exp(g - g.max())
        f = weights / weights.sum()
        blurred = _blurred(f, shifts)
        slope = precision * (blurred - observed)
        value = precision * (f * (0.5 * blurred - observed)).sum() + 0.5 * (u @ u)
        pulled = deviations * dctn(f * (slope - (f * slope).sum()), norm="ortho")
        return float(value), pulled.ravel() + u

    fit = minimize(loss, np.zeros(observed.size), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return float(fit.fun)
