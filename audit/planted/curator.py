"""Curators that are broken, each in one way, before the checks of the sound one."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from audit import curator as black_box
from audit import curator_block
from audit.central import replayed
from audit.check import Finding, Leak, Setting
from audit.curator_tree import enumerated
from audit.replay import Method
from clustering.central.cells import Cells
from clustering.central.run import run
from clustering.concentrated_block import ConcentratedBlock
from clustering.curator import Curator, Exact, Question, Shares, Sums
from clustering.halving_tree import decay_of
from clustering.noise import GaussianNoise, LaplaceNoise, Noise
from clustering.seeded_entropy import SeededEntropy
from sfumato.concentrated import rho_of
from sfumato.entropy import WORD_SPAN, Entropy
from sfumato.specs import DpBisectingKmeans, DpKmeans, DpUniformGridKmeans, GatedGridKmeans

SEVENTY = Fraction(7, 10)


def _shrunk(noise: Noise, share: Fraction) -> Noise:
    """Noise of a share of the width."""
    return replace(noise, unit=noise.unit * (share if isinstance(noise, LaplaceNoise) else share**2))


class NoiseAt70(Curator):
    """Every scale is seven tenths of what it is charged as."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(question, exact, _shrunk(noise, SEVENTY))

    def _scale(self, sensitivity: int, epsilon_nano: int) -> Fraction:
        return super()._scale(sensitivity, epsilon_nano) * SEVENTY


class GaussianAt70(Curator):
    """The deviation of a concentrated answer is seven tenths of what its rho takes."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(question, exact, _shrunk(noise, SEVENTY) if question.rho_pico else noise)


class HalfPricedBlock(Curator):
    """A block of all that an epsilon and a delta pay for, charged half of that epsilon."""

    def concentrated(self, epsilon_nano: int, delta_atto: int) -> ConcentratedBlock:
        super().concentrated(epsilon_nano // 2, delta_atto)
        return ConcentratedBlock(rho_of(epsilon_nano, delta_atto), self._records, self._release)


class Understated(LaplaceNoise):
    """Says one scale and draws another."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        return LaplaceNoise(self.unit * SEVENTY, self.sensitivities).draw(entropy)


class UnderstatedGaussian(GaussianNoise):
    """The same, of the other noise."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        return GaussianNoise(self.unit * SEVENTY**2, self.sensitivities).draw(entropy)


class DrawsAt70(Curator):
    """The scale is what it should be, and the sampler draws at seven tenths of it."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        kind = Understated if isinstance(noise, LaplaceNoise) else UnderstatedGaussian
        return super()._release(question, exact, kind(noise.unit, noise.sensitivities))


class UserBoundIgnored(Curator):
    """Noise for one record where a user has several."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(question, exact, _shrunk(noise, Fraction(1, self.max_per_user)))


class Uncentred(Curator):
    """Sums of places themselves, with the noise of residuals from a centre, which are shorter."""

    _raw: Exact

    def sums(self, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], shares: Shares) -> Sums:
        def raw() -> NDArray[np.int64]:
            points = self._records.points.astype(np.int64)
            sums, labels = np.zeros_like(centres), cells.index(self._records.points)
            np.add.at(sums, labels[labels >= 0], points[labels >= 0])
            return sums.ravel()

        self._raw = raw
        return super().sums(cells, centres, radii, shares)

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(question, self._raw if question.what == "sums" else exact, noise)


class OneCountInTwoCells(Curator):
    """Cells that overlap, each with its neighbour's records too, charged as if they were disjoint."""

    def counts(self, cells: Cells, epsilon_nano: int) -> NDArray[np.int64]:
        def exact() -> NDArray[np.int64]:
            labels = cells.index(self._records.points)
            own = np.bincount(labels[labels >= 0], minlength=cells.n_cells).astype(np.int64)
            return np.asarray(own + np.roll(own, 1))

        return self._answer("counts", epsilon_nano, cells.n_cells, (cells,), exact)


class ChargesAfter(Curator):
    """Looks and draws, then pays."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        noisy = exact() + noise.draw(self._entropy)
        told = self._charged(question)
        return self._kept(noisy) if told is None else told


class Seeded(LaplaceNoise):
    """Noise that anybody can draw again."""

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:  # noqa: ARG002 - which is the leak
        return LaplaceNoise(self.unit, self.sensitivities).draw(SeededEntropy(0))


class SeedableNoise(Curator):
    """Noise by a seed that was fixed."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        return super()._release(question, exact, Seeded(noise.unit, noise.sensitivities))


class FloatNoise(Curator):
    """exact + Laplace noise by the inverse of its distribution in floats, as textbooks have it (Mironov 2012)."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        told = self._charged(question)
        if told is not None:
            return told
        words = self._entropy.words(len(noise.sensitivities))
        uniform = (words.astype(np.float64) + 0.5) / WORD_SPAN - 0.5
        drawn = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * float(noise.unit) * noise.sensitivities
        return self._kept(exact() + drawn)


class LocalSensitivity(Curator):
    """Sums with noise for the longest residual there is, which is some person's."""

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        if question.what == "sums":
            longest = max(1, int(np.abs(exact()).max(initial=1)))
            noise = replace(noise, sensitivities=np.minimum(noise.sensitivities, longest))
        return super()._release(question, exact, noise)


class UnwrittenAnswer(Curator):
    """Answers are not written down: a job that is run again draws anew, and pays once for two."""

    def _kept(self, answer: NDArray[np.int64]) -> NDArray[np.int64]:
        return answer


def _replays(params: object, broken: type[Curator]) -> Callable[[Setting], list[Finding]]:
    method = Method(f"a {broken.__name__} curator", params, run, broken)
    return lambda setting: list(replayed(method, setting))


def _probes(probe: str, broken: type[Curator]) -> Callable[[Setting], list[Finding]]:
    return lambda setting: [black_box.look(broken, probe, setting)]


def _in_block(probe: str, broken: type[Curator]) -> Callable[[Setting], list[Finding]]:
    return lambda setting: [curator_block.look(broken, probe, setting)]


_STEPS = DpKmeans(1.0, 2, iterations=2)
_BISECTIONS = DpBisectingKmeans(1.0, 3)
_CELLS = DpUniformGridKmeans(1.0, 2, cells=2)
_BLOCK = GatedGridKmeans(16.0, 2, delta=1e-3)

LEAKS: tuple[Leak, ...] = (
    Leak("noise at 70 %", "sums and counts, replayed", _replays(_STEPS, NoiseAt70)),
    Leak("noise at 70 %", "squares, replayed", _replays(_BISECTIONS, NoiseAt70)),
    Leak("noise at 70 %", "a concentrated block, replayed", _replays(_BLOCK, GaussianAt70)),
    *(Leak("noise at 70 %", f"{probe}, released", _in_block(probe, GaussianAt70)) for probe in curator_block.PROBES),
    Leak("a block at half its price", "a concentrated block, replayed", _replays(_BLOCK, HalfPricedBlock)),
    *(
        Leak("noise at 70 %", f"{probe}, released", _probes(probe, NoiseAt70))
        for probe in black_box.PROBES
        if probe != "counts, lowest bit"
    ),
    Leak("noise drawn at 70 % of what it says", "sums and counts, replayed", _replays(_STEPS, DrawsAt70)),
    Leak("noise drawn at 70 % of what it says", "counts, released", _probes("counts", DrawsAt70)),
    Leak("sensitivity of uncentred data", "sums, replayed", _replays(_STEPS, Uncentred)),
    Leak("noise for the longest residual there is", "sums, replayed", _replays(_STEPS, LocalSensitivity)),
    Leak("float Laplace low bits", "counts, released", _probes("counts, lowest bit", FloatNoise)),
    Leak("a charge after the draw", "curator, replayed", _replays(_STEPS, ChargesAfter)),
    Leak("an answer that is not written down", "curator, replayed", _replays(_STEPS, UnwrittenAnswer)),
    Leak("user bound ignored", "curator, replayed", _replays(_STEPS, UserBoundIgnored)),
    Leak("user bound ignored", "counts, released", _probes("counts of users", UserBoundIgnored)),
    Leak("one count in two cells", "counts, replayed", _replays(_CELLS, OneCountInTwoCells)),
    Leak("seedable noise", "curator, replayed", _replays(_STEPS, SeedableNoise)),
    Leak(
        "a tree without enough decay",
        "halving tree, enumerated",
        lambda _: [enumerated(lambda scale: max(1, decay_of(scale) // 3))],
    ),
)
