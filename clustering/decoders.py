"""From a tally to frequencies: the unbiased estimate and its variance, by the mechanism's exact support."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.walsh import walsh_hadamard
from clustering.plan import Tally
from sfumato.mechanisms import support
from sfumato.precision import Precision, precision
from sfumato.specs import HrMechanism, Mechanism


@dataclass(frozen=True)
class Decoder(Precision):
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
    Those of `Precision`, and:
    n_symbols : int
        k.
    p, q : float
        The chance that a report supports its own symbol, and any one other.
    scale : float
        1 / (p - q).
    n_coefficients : int
        K, where a tally counts Walsh coefficients and signs; 0 where it counts symbols.
    """

    n_symbols: int
    p: float
    q: float
    scale: float
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
    return Decoder(
        **asdict(precision(mechanism)),
        n_symbols=mechanism.n_symbols,
        p=float(p),
        q=float(q),
        scale=float(1 / (p - q)),
        n_coefficients=mechanism.n_coefficients if isinstance(mechanism, HrMechanism) else 0,
    )
