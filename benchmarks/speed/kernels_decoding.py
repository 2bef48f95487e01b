"""Rows of `kernels`: from reports to shares, and from a blurred field to a density."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import correlate1d
from scipy.optimize import minimize

from benchmarks.speed.agreement import Disagreement, agree, near
from benchmarks.speed.peer import Peer
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.decoders import decoder
from clustering.deconvolution import MORE_STEPS, deconvolve, prior_deviations
from clustering.seeded_entropy import SeededEntropy
from clustering.tally import count
from sfumato.accounting import NANO
from sfumato.mechanisms import design, perturb_many
from sfumato.mechanisms.grr import symbols_of
from sfumato.specs import Draw, Feature, GridEncoding, RoundSpec

GROUP = "kernels"
Floats = NDArray[np.float64]

LIMIT_HR_SECONDS = 0.5  # for 2^20 cells and a million reports
LIMIT_SS_SECONDS = 5.0  # for ten million reports over 169 cells
OWN_REPORTS = "the same people; each library's reports are its own, and its shares are checked against the truth"


@dataclass(frozen=True)
class People:
    """Who answers a round: a symbol each."""

    spec: RoundSpec
    symbols: NDArray[np.int64]

    @classmethod
    def drawn(cls, kind: str, cells: tuple[int, ...], epsilon: float, n: int) -> "People":
        """Most of them in few cells, some in each."""
        encoding = GridEncoding(cells)
        mechanism = design(kind, encoding.n_symbols, int(epsilon * NANO))
        features = tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(len(cells)))
        places = np.random.default_rng(1).beta(0.5, 3.0, n)
        symbols = np.minimum((places * encoding.n_symbols).astype(np.int64), encoding.n_symbols - 1)
        return cls(RoundSpec(features, encoding, mechanism, Draw.between(0.0, 1.0)), symbols)

    @property
    def n_cells(self) -> int:
        return self.spec.encoding.n_symbols

    @property
    def truth(self) -> Floats:
        counts = np.bincount(self.symbols, minlength=self.n_cells)
        return np.asarray(counts / len(self.symbols), dtype=np.float64)

    @property
    def deviation(self) -> float:
        """Of a share's noise, where nobody is."""
        return float(np.sqrt(decoder(self.spec.mechanism).variance(float(self.truth.max()), len(self.symbols))))

    def reports(self, repeats: int = 1) -> NDArray[np.uint8]:
        """Of each one, perturbed; again and again where there are to be more than can be waited for."""
        values = perturb_many(self.spec.mechanism, self.symbols, SeededEntropy(2))
        return np.tile(values, (repeats, 1)) if repeats > 1 else values

    def shares(self, values: NDArray[np.uint8]) -> Floats:
        """Counted and decoded."""
        tally = count(self.spec, np.zeros(len(values), dtype=np.int64), values)
        return np.asarray(decoder(self.spec.mechanism).frequencies(tally)[0], dtype=np.float64)


def rows(setting: Setting, peer: Peer) -> Iterator[Row]:
    """Randomised response, local hashing, Hadamard response, subsets; and the field."""
    yield from _response(setting, peer)
    yield from _hashed(setting, peer)
    yield from _signs(setting, peer)
    yield _subsets(setting)
    yield from _field(setting)


def _timed(peer: Peer, function: str, people: People, epsilon: float) -> Callable[[], float]:
    return lambda: peer.call(function, epsilon=epsilon, cells=people.n_cells).seconds


def _response(setting: Setting, peer: Peer) -> Iterator[Row]:
    """The same reports, so that the shares are the same but for the thresholds' last digits."""
    epsilon, n = 2.0, 100_000 if setting.quick else 1_000_000
    people = People.drawn("grr", (128,), epsilon, n)
    values = people.reports()
    ours = people.shares(values)
    peer.send("symbols", symbols_of(values))
    peer.call("list_reports", "symbols")
    clipped = ours.clip(0)
    for library, function, expected in (
        ("pure-ldp", "pure_response", ours),
        ("multi-freq-ldpy", "multi_response", clipped / clipped.sum()),
    ):
        agree("shares", expected, peer.call(function, epsilon=epsilon, cells=people.n_cells).value, 1e-6)
        yield compare(
            GROUP,
            f"grr, {n:,} reports over 128 cells, counted and decoded",
            f"{library} {peer.version(library)}",
            in_turns(
                lambda: seconds(lambda: people.shares(values)), _timed(peer, function, people, epsilon), setting.turns
            ),
            bar=1.0,
            note="the same reports and the same shares",
        )


def _hashed(setting: Setting, peer: Peer) -> Iterator[Row]:
    epsilon, n = 2.0, 2_000 if setting.quick else 20_000
    people = People.drawn("olh", (128,), epsilon, n)
    values = people.reports()
    near("shares", people.shares(values), people.truth, people.deviation)
    peer.send("symbols", people.symbols)
    peer.call("report_hashed", "symbols", epsilon=epsilon, cells=people.n_cells)
    for library, function in (("pure-ldp", "pure_hashed"), ("multi-freq-ldpy", "multi_hashed")):
        theirs = peer.call(function, epsilon=epsilon, cells=people.n_cells).value
        near(f"shares by {library}", theirs, people.truth, people.deviation)
        yield compare(
            GROUP,
            f"olh, {n:,} reports over 128 cells, counted and decoded",
            f"{library} {peer.version(library)}",
            in_turns(
                lambda: seconds(lambda: people.shares(values)), _timed(peer, function, people, epsilon), setting.turns
            ),
            bar=1.0,
            note=OWN_REPORTS,
        )


def _signs(setting: Setting, peer: Peer) -> Iterator[Row]:
    """2^20 cells: against the peer, and against the limit that was set."""
    epsilon, side, n = (1.0, 1 << 9, 200_000) if setting.quick else (1.0, 1 << 10, 1_000_000)
    people = People.drawn("hr", (side, side), epsilon, n)
    values = people.reports()
    near("shares", people.shares(values), people.truth, people.deviation)
    peer.send("symbols", people.symbols)
    peer.call("report_signs", "symbols", epsilon=epsilon, cells=people.n_cells, seed=3)
    near(
        "shares by pure-ldp",
        peer.call("pure_signs", epsilon=epsilon, cells=people.n_cells).value,
        people.truth,
        people.deviation,
    )
    name = f"hr, {n:,} reports over {people.n_cells:,} cells, counted and decoded"

    def ours() -> float:
        return seconds(lambda: people.shares(values))

    yield compare(
        GROUP,
        name,
        f"pure-ldp {peer.version('pure-ldp')}",
        in_turns(ours, _timed(peer, "pure_signs", people, epsilon), setting.turns),
        bar=20.0,
        note=OWN_REPORTS,
    )
    limit = LIMIT_HR_SECONDS * n / 1_000_000
    yield compare(
        GROUP,
        name,
        f"the limit of {limit:g} s",
        in_turns(ours, lambda: limit, setting.turns),
        bar=1.0,
        note="of half a second for 2^20 cells and a million reports; with fewer cells and reports, its share",
    )


def _subsets(setting: Setting) -> Row:
    """Ten million reports: a quarter of a million people's, forty times over."""
    n, repeats = 250_000, 4 if setting.quick else 40
    people = People.drawn("ss", (13, 13), 1.0, n)
    values = people.reports(repeats)
    near("shares", people.shares(values), people.truth, people.deviation)
    total = n * repeats
    limit = LIMIT_SS_SECONDS * total / 10_000_000
    return compare(
        GROUP,
        f"ss, {total:,} reports over 169 cells, counted and decoded",
        f"the limit of {limit:g} s",
        in_turns(lambda: seconds(lambda: people.shares(values)), lambda: limit, setting.turns),
        bar=1.0,
        note="on one core; as bytes in memory, a quarter of a million reports again and again",
    )


def _field(setting: Setting) -> Iterator[Row]:
    """A field of three bumps, blurred and noisy, in two features and in three."""
    for cells, n_features, shifts in ((64, 2, 6), (16, 3, 4)) if setting.quick else ((96, 2, 8), (32, 3, 4)):
        seen, precision = _seen(cells, n_features, shifts)
        given = {"shifts": shifts, "precision": precision, "length_scale": 0.06, "amplitude": 2.0}

        def ours(seen: Floats = seen, given: dict[str, float] = given) -> float:
            return deconvolve(seen, **given, steps=MORE_STEPS).loss  # type: ignore[arg-type]

        def theirs(seen: Floats = seen, given: dict[str, float] = given) -> float:
            return plain_fit(seen, **given, steps=MORE_STEPS)  # type: ignore[arg-type]

        gap = (ours() - theirs()) / abs(theirs())
        if not gap <= 1e-3:
            raise Disagreement(f"loss: higher by {gap:.2g} of the reference's")
        yield compare(
            GROUP,
            f"field of {cells}^{n_features} cells deconvolved",
            "scipy L-BFGS-B over all coefficients, transforms and filters of scipy alone",
            in_turns(lambda: seconds(ours), lambda: seconds(theirs), setting.turns),
            bar=1.0,
            note=f"to its end or {MORE_STEPS} steps; the loss is the reference's or less (within .1 %)",
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
    """The loss that the definition comes to: precision (½ f·Tf - f·F) + ½ |u|², f = softmax(IDCT(sqrt(S) u))."""
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
