"""Broken curators, each with one fault."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.central import curator_queries, gaussian_blocks
from audit.central.recordings import N_FEATURES, Method
from audit.central.replay import MAP_FEATURES, check_replay
from audit.central.trees import check_paths
from audit.checks.check import Finding, Leak, Setting
from clustering.central.cells import Cells
from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock
from clustering.central.noise import GaussianNoise, LaplaceNoise, Noise
from clustering.central.privtree import compute_decay
from clustering.central.queries import PRODUCT_PARTS, CellMoments, Exact, Query, Shares, Sums
from clustering.central.run import run
from clustering.random import SeededEntropy
from sfumato.privacy.entropy import WORD_SPAN, Entropy
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, rho_of
from sfumato.specs import DensityMap, DpBisectingKmeans, DpKmeans, DpUniformGridKmeans, PrivateKmeans

SHARE = Fraction(7, 10)


def _scale_noise(noise: Noise, share: Fraction) -> Noise:
    """Return noise with a share of the scale."""
    return replace(noise, unit=noise.unit * (share if isinstance(noise, LaplaceNoise) else share**2))


class NoiseAt70(Curator):
    """A curator with noise at 70 % of the charged scales."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, exact, _scale_noise(noise, SHARE))

    def _scale(self, sensitivity: int, epsilon_nano: int) -> Fraction:
        return super()._scale(sensitivity, epsilon_nano) * SHARE


class NoiseAt50(Curator):
    """A curator with noise at half of the charged scales."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, exact, _scale_noise(noise, Fraction(1, 2)))


class GaussianAt70(Curator):
    """A curator with concentrated answers at 70 % of the standard deviation for their rho."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, exact, _scale_noise(noise, SHARE) if query.rho_pico else noise)


class NarrowGaussian(GaussianNoise):
    """Gaussian noise with 70 % of the added variance."""

    def variance(self, sensitivity: int) -> Fraction:
        return super().variance(sensitivity) - ADDED_VARIANCE * (1 - SHARE)


class AddedVarianceAt70(Curator):
    """A curator with concentrated answers that have 70 % of the added variance."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(
            query, exact, NarrowGaussian(noise.unit, noise.sensitivities) if query.rho_pico else noise
        )


class HalfChargedBlock(Curator):
    """A curator that opens a block for (epsilon, delta) and charges half of the epsilon."""

    def open_block(self, epsilon_nano: int, delta_atto: int) -> ConcentratedBlock:
        super().open_block(epsilon_nano // 2, delta_atto)
        return ConcentratedBlock(rho_of(epsilon_nano, delta_atto), self._records, self._release, self.domain)


class UnclippedBlock(ConcentratedBlock):
    """A block with noise for clipped residuals that multiplies residuals of up to eight times the radius."""

    def _answer(
        self,
        description: str,
        rho_pico: int,
        sensitivities: NDArray[np.int64],
        inputs: tuple[Any, ...],
        exact: Exact,
        n_changes: int = 1,
    ) -> NDArray[np.int64]:
        if description == "products":
            cells, places, limits = inputs
            wide = CellMoments(cells, places, 8 * limits, "products")
            return super()._answer(
                description, rho_pico, sensitivities, inputs, lambda: 64 * self._records.total(wide)[2].ravel()
            )
        return super()._answer(description, rho_pico, sensitivities, inputs, exact, n_changes)


class UnclippedCovariance(Curator):
    """A curator with blocks that do not clip the residuals of products."""

    def open_block(self, epsilon_nano: int, delta_atto: int) -> ConcentratedBlock:
        block = super().open_block(epsilon_nano, delta_atto)
        return UnclippedBlock(block.left_pico, self._records, self._release, self.domain)


class SwapSensitivity(Curator):
    """A curator with the noise of a radius for products, which change by a squared radius."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        if query.description == "products":
            noise = replace(noise, sensitivities=np.maximum(noise.sensitivities // PRODUCT_PARTS, 1))
        return super()._release(query, exact, noise)


class OneQueryHalved(Curator):
    """A curator with half of the noise in the counts of shells, the first query of a block."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        is_first = query.rho_pico > 0 and sum(each.rho_pico > 0 for each in self._queries) == 0
        return super()._release(query, exact, _scale_noise(noise, Fraction(1, 2)) if is_first else noise)


class UnderstatedLaplace(LaplaceNoise):
    """Laplace noise with a sampled scale below the stated one."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        return LaplaceNoise(self.unit * SHARE, self.sensitivities).draw(entropy)


class UnderstatedGaussian(GaussianNoise):
    """Gaussian noise with a sampled scale below the stated one."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        return GaussianNoise(self.unit * SHARE**2, self.sensitivities).draw(entropy)


class SamplesAt70(Curator):
    """A curator that states correct scales and samples noise at 70 % of them."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        kind = UnderstatedLaplace if isinstance(noise, LaplaceNoise) else UnderstatedGaussian
        return super()._release(query, exact, kind(noise.unit, noise.sensitivities))


class UserBoundIgnored(Curator):
    """A curator that adds noise for one record, although a user may have several."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, exact, _scale_noise(noise, Fraction(1, self.max_per_user)))


class UncentredSums(Curator):
    """A curator that sums places and adds the noise of residuals from a centre, which are shorter."""

    _raw: Exact

    def sums(self, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], shares: Shares) -> Sums:
        def raw() -> NDArray[np.int64]:
            points = self._records.points.astype(np.int64)
            sums, labels = np.zeros_like(centres), cells.index(self._records.points)
            np.add.at(sums, labels[labels >= 0], points[labels >= 0])
            return sums.ravel()

        self._raw = raw
        return super().sums(cells, centres, radii, shares)

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, self._raw if query.description == "sums" else exact, noise)


class OverlappingCells(Curator):
    """A curator that counts each record in two cells, at the cost of disjoint cells."""

    def counts(self, cells: Cells, epsilon_nano: int) -> NDArray[np.int64]:
        def exact() -> NDArray[np.int64]:
            labels = cells.index(self._records.points)
            own = np.bincount(labels[labels >= 0], minlength=cells.n_cells).astype(np.int64)
            return np.asarray(own + np.roll(own, 1))

        return self._answer("counts", epsilon_nano, cells.n_cells, (cells,), exact)


class WideCircle(Curator):
    """A curator that sums points of circles with twice the radius, and adds the noise of the stated one."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        def wide() -> NDArray[np.int64]:
            sums = exact().reshape(-1, self.n_features).copy()
            pairs = np.concatenate([self.circles.firsts, self.circles.firsts + 1])
            sums[:, pairs] *= 2
            return sums.ravel()

        return super()._release(query, wide if query.description == "sums" else exact, noise)


class LateCharge(Curator):
    """A curator that reads records and draws noise before the charge."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        noisy = exact() + noise.draw(self._entropy)
        stored = self._charge(query)
        return self._store(noisy) if stored is None else stored


class SeededLaplace(LaplaceNoise):
    """Laplace noise that can be reproduced."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:  # noqa: ARG002 - the fault
        return LaplaceNoise(self.unit, self.sensitivities).draw(SeededEntropy(0))


class SeededNoise(Curator):
    """A curator with noise from a fixed seed."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(query, exact, SeededLaplace(noise.unit, noise.sensitivities))


class FloatNoise(Curator):
    """A curator with Laplace noise by the inverse distribution function in floats, as in textbooks (Mironov 2012)."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        stored = self._charge(query)
        if stored is not None:
            return stored
        words = self._entropy.words(len(noise.sensitivities))
        uniform = (words.astype(np.float64) + 0.5) / WORD_SPAN - 0.5
        drawn = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * float(noise.unit) * noise.sensitivities
        return self._store(exact() + drawn)


class LocalSensitivity(Curator):
    """A curator that scales the noise of sums to the longest residual in the data, which depends on one person."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        if query.description == "sums":
            longest = max(1, int(np.abs(exact()).max(initial=1)))
            noise = replace(noise, sensitivities=np.minimum(noise.sensitivities, longest))
        return super()._release(query, exact, noise)


class UnstoredAnswer(Curator):
    """A curator that does not store answers. A job that runs again draws twice and pays once."""

    def _store(self, answer: NDArray[np.int64]) -> NDArray[np.int64]:
        return answer


def _replay(
    params: object,
    planted: type[Curator],
    n_features: tuple[int, ...] = N_FEATURES,
    circles: tuple[int, ...] = (),
) -> Callable[[Setting], list[Finding]]:
    n_features = (12,) if params is _BLOCK else n_features  # enough for a projection
    method = Method(f"{planted.__name__} curator", params, run, planted, n_features, circles=circles)
    return lambda setting: list(check_replay(method, setting, until_fault=True))


def _probe(probe: str, planted: type[Curator]) -> Callable[[Setting], list[Finding]]:
    return lambda setting: [curator_queries.check_answer(planted, probe, setting)]


def _probe_block(probe: str, planted: type[Curator]) -> Callable[[Setting], list[Finding]]:
    return lambda setting: [gaussian_blocks.check_block_answer(planted, probe, setting)]


_STEPS = DpKmeans(1.0, 2, iterations=2)
_BISECTIONS = DpBisectingKmeans(1.0, 3)
_CELLS = DpUniformGridKmeans(1.0, 2, cells=2)
_MAP = DensityMap(1.0, cells=4)
_BLOCK = PrivateKmeans(16.0, 2, delta=1e-3)

LEAKS: tuple[Leak, ...] = (
    Leak("noise at 70 %", "sums and counts, replay", _replay(_STEPS, NoiseAt70)),
    Leak("noise at 70 %", "squares, replay", _replay(_BISECTIONS, NoiseAt70)),
    Leak("noise at 70 %", "concentrated block, replay", _replay(_BLOCK, GaussianAt70)),
    *(
        Leak("noise at 70 %", f"curator: {probe}", _probe_block(probe, GaussianAt70))
        for probe in gaussian_blocks.PROBES
    ),
    Leak("added variance at 70 %", "concentrated block, replay", _replay(_BLOCK, AddedVarianceAt70)),
    Leak("sensitivity of a swap", "concentrated block, replay", _replay(_BLOCK, SwapSensitivity)),
    Leak("sensitivity of a swap", "curator: block: products", _probe_block("block: products", SwapSensitivity)),
    Leak("covariance unclipped", "concentrated block, replay", _replay(_BLOCK, UnclippedCovariance)),
    Leak("noise of one query halved", "concentrated block, replay", _replay(_BLOCK, OneQueryHalved)),
    Leak("user bound ignored", "concentrated block, replay", _replay(_BLOCK, UserBoundIgnored)),
    Leak("block at half its cost", "concentrated block, replay", _replay(_BLOCK, HalfChargedBlock)),
    *(
        Leak("noise at 70 %", f"curator: {probe}", _probe(probe, NoiseAt70))
        for probe in curator_queries.PROBES
        if probe != "counts, lowest bit"
    ),
    Leak("noise sampled at 70 % of its stated scale", "sums and counts, replay", _replay(_STEPS, SamplesAt70)),
    Leak("noise sampled at 70 % of its stated scale", "curator: counts", _probe("counts", SamplesAt70)),
    Leak("sensitivity of uncentred data", "sums, replay", _replay(_STEPS, UncentredSums)),
    Leak("noise for the longest residual in the data", "sums, replay", _replay(_STEPS, LocalSensitivity)),
    Leak(
        "circle with twice the accounted radius",
        "sums, replay",
        _replay(PrivateKmeans(4.0, 3), WideCircle, n_features=(5,), circles=(0, 2)),
    ),
    Leak("float Laplace low bits", "curator: counts, lowest bit", _probe("counts, lowest bit", FloatNoise)),
    Leak("charge after the draw", "curator, replay", _replay(_STEPS, LateCharge)),
    Leak("answer not stored", "curator, replay", _replay(_STEPS, UnstoredAnswer)),
    Leak("user bound ignored", "curator, replay", _replay(_STEPS, UserBoundIgnored)),
    Leak("user bound ignored", "curator: counts of users", _probe("counts of users", UserBoundIgnored)),
    Leak("noise at half", "label map, replay", _replay(_MAP, NoiseAt50, MAP_FEATURES)),
    Leak("user bound ignored", "label map, replay", _replay(_MAP, UserBoundIgnored, MAP_FEATURES)),
    Leak("record counted in two cells", "counts, replay", _replay(_CELLS, OverlappingCells)),
    Leak("noise from a fixed seed", "curator, replay", _replay(_STEPS, SeededNoise)),
    Leak(
        "tree with too little decay",
        "halving tree, enumeration",
        lambda _: [check_paths(lambda scale: max(1, compute_decay(scale) // 3))],
    ),
)
