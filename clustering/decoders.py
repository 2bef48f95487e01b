"""From a tally to frequencies: the unbiased estimate and its variance, by the mechanism's exact support."""

from dataclasses import dataclass
from fractions import Fraction
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.walsh import walsh_hadamard
from clustering.plan import Tally
from sfumato.mechanisms import ratio, support
from sfumato.specs import GrrMechanism, HrMechanism, Mechanism, SsMechanism


@dataclass(frozen=True)
class Decoder:
    """What a mechanism's reports tell, in floating point; made by `decoder`.

    Estimates sum to one. Under `grr` and `ss` they do so by themselves: a report names a
    fixed number of symbols, so the indicators of two of them, of a report that owes nothing to
    either, have correlation -1/(k-1). Under `oue`, `olh` and `hr` indicators are uncorrelated,
    and what the estimates lack of one is shared out evenly: (C/n - q) / (p-q) of weights
    e_x - 1/k instead of e_x, plus 1/k. That keeps them unbiased, costs no variance that
    matters and saves some, and makes errors of sums the same for all mechanisms but for a
    factor (`spread_variance`).

    Attributes
    ----------
    n_symbols : int
        k.
    p, q : float
        The chance that a report supports its own symbol, and any one other.
    scale : float
        1 / (p - q).
    zero_variance : float
        n times the variance of an estimate at frequency 0: v = q (1-q) / (p-q)^2, or
        v (1 - 1/k) + u/k^2 where the sum is made one.
    slope_variance : float
        u = (p (1-p) - q (1-q)) / (p-q)^2: what a frequency f adds to it, times f; or
        u (1 - 2/k).
    spread_variance : float
        n times the variance of a weighted sum of estimates at frequency 0, for each unit of
        sum (w - mean w)^2: v k/(k-1), or v.
    signal : float
        sinh^2(epsilon/2), the information of one report: (e^eps - 1)^2 / (4 e^eps).
        Infinite where nothing is perturbed (a dry run).
    contrast : float
        tanh(epsilon/2), in (0, 1].
    names_so_many : bool
        Whether every report names the same number of symbols.
    n_coefficients : int
        K, where a tally counts Walsh coefficients and signs; 0 where it counts symbols.
    """

    n_symbols: int
    p: float
    q: float
    scale: float
    zero_variance: float
    slope_variance: float
    spread_variance: float
    signal: float
    contrast: float
    names_so_many: bool
    n_coefficients: int

    def frequencies(self, tally: Tally) -> NDArray[np.float64]:
        """Estimated share of each symbol under each slot: (C/n - q) / (p - q), unbiased.

        Returns
        -------
        ndarray of shape (n_slots, n_symbols), float64
            Of sum one. Negative values are noise and are kept; rows of slots without reports
            are zero.
        """
        estimates = self.candidate_frequencies(Tally(self._supports(tally), tally.reports))
        if self.names_so_many:
            return estimates
        estimates += (1 - estimates.sum(axis=1, keepdims=True)) / self.n_symbols
        return np.where(tally.reports[:, None] > 0, estimates, 0.0)

    def candidate_frequencies(self, tally: Tally) -> NDArray[np.float64]:
        """What `frequencies` says, of counts of some symbols alone; they need not sum to one.

        Returns
        -------
        ndarray of the shape of the counts, float64
        """
        n = tally.reports[:, None]
        # Integers below 2**53 are exact in float64; the subtraction comes before the division
        # so that rounding is relative to the deviation and not to the count.
        estimates = (tally.counts - n * self.q) * self.scale / np.maximum(n, 1)
        return np.where(n > 0, estimates, 0.0)

    def _supports(self, tally: Tally) -> NDArray[np.int64]:
        """How many reports support each symbol: of the counts, or of the coefficients' signs.

        With S_j the sum of signs sent for coefficient j, those that agree with symbol x's
        signs exceed those that do not by Z_x = sum over j of (-1)^popcount(j & (x+1)) S_j.
        """
        if self.n_coefficients == 0:
            return tally.counts
        supports = np.empty((len(tally.reports), self.n_symbols), dtype=np.int64)
        for slot, row in enumerate(tally.counts):
            signs = row[0::2] - row[1::2]
            walsh_hadamard(signs)
            supports[slot] = (tally.reports[slot] + signs[1 : self.n_symbols + 1]) // 2
        return supports

    def variance(self, frequency: float, n_reports: int) -> float:
        """Variance of an estimate over the mechanism's coins, the devices' symbols held fixed.

        Symbols that are themselves a sample of n from a population add f (1-f) / n.
        """
        return (self.zero_variance + frequency * self.slope_variance) / n_reports

    def standard_errors(
        self, spreads: NDArray[np.float64], shares: NDArray[np.float64], n_reports: int
    ) -> NDArray[np.float64]:
        """Standard errors of weighted sums of estimates: sum over symbols of w f.

            Var = v/n * k/(k-1) * sum (w - mean w)^2  +  m (1-m) / n,
        without k/(k-1) where indicators are uncorrelated; the second term is for the devices
        being a sample (m is the true sum, of weights 0 or 1).

        Parameters
        ----------
        spreads : ndarray of shape (m,)
            Each sum's sum (w - mean w)^2 over the k symbols; below zero is rounding.
        shares : ndarray of shape (m,)
            The sums themselves, as estimated; clipped to [0, 1].
        n_reports : int
            Reports behind the estimates.
        """
        share = np.clip(shares, 0.0, 1.0)
        coins = self.spread_variance * np.maximum(spreads, 0.0)
        return np.asarray(np.sqrt((coins + share * (1 - share)) / n_reports), dtype=np.float64)


def decoder(mechanism: Mechanism) -> Decoder:
    """The decoder of a mechanism as published (STATISTICS, section 1).

    p, q and every difference of them are taken as exact fractions and rounded once.

    Raises
    ------
    UnfitRound
        A report says nothing about its symbol (p = q).
    """
    p, q = support(mechanism)
    if p == q:
        raise UnfitRound("reports of this mechanism say nothing about their symbol")
    gap = p - q
    try:
        odds = ratio(mechanism)
    except ZeroDivisionError:  # unbounded: nothing is perturbed
        signal, contrast = inf, 1.0
    else:
        signal, contrast = signal_of(odds), float((odds - 1) / (odds + 1))
    k = mechanism.n_symbols
    at_zero, slope = q * (1 - q) / gap**2, (p * (1 - p) - q * (1 - q)) / gap**2
    names_so_many = isinstance(mechanism, GrrMechanism | SsMechanism)
    return Decoder(
        n_symbols=k,
        p=float(p),
        q=float(q),
        scale=float(1 / gap),
        zero_variance=float(at_zero if names_so_many else at_zero * Fraction(k - 1, k) + slope / k**2),
        slope_variance=float(slope if names_so_many else slope * Fraction(k - 2, k)),
        spread_variance=float(at_zero * Fraction(k, k - 1) if names_so_many else at_zero),
        signal=signal,
        contrast=contrast,
        names_so_many=names_so_many,
        n_coefficients=mechanism.n_coefficients if isinstance(mechanism, HrMechanism) else 0,
    )


def signal_of(odds: Fraction) -> float:
    """(e^eps - 1)^2 / (4 e^eps) at e^eps = odds: N times this is N_eff, the effective number of reports."""
    return float((odds - 1) ** 2 / (4 * odds))


def mass_noise(n_reports: int, contrast: float) -> float:
    """δ = 1 / (2 sqrt(N) tanh(eps/2)): the mass of people that noise can fake (STATISTICS 3.2)."""
    return 1 / (2 * sqrt(n_reports) * contrast)
