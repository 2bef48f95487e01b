"""Unbiased frequency estimates from tallies, with their exact variance."""

from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.counting import walsh_hadamard
from clustering.rounds.tally import Tally
from sfumato.model.precision import Precision, precision
from sfumato.specs import Mechanism


@dataclass(frozen=True)
class Decoder(Precision):
    """Frequency estimator of a mechanism in floating point; build it with `decoder`.

    Estimates sum to one. Reports of `grr` and `ss` name a fixed number of symbols, so their
    estimates sum to one by construction: the indicators of two symbols in a report that
    supports neither by its own symbol have correlation -1/(k-1). Indicators of `oue`, `olh`
    and `hr` are uncorrelated. For them the missing mass is shared evenly: each estimate
    (C/n - q) / (p - q) gets weights e_x - 1/k instead of e_x, plus 1/k. The estimates stay
    unbiased and their variance decreases slightly. The errors of sums are then equal for all
    mechanisms up to a factor (`spread_variance`).

    Attributes
    ----------
    n_symbols : int
        k.
    p, q : float
        Probability that a report supports its own symbol, and a given other symbol.
    scale : float
        1 / (p - q).
    n_coefficients : int
        K if a tally counts Walsh coefficients and signs; 0 if it counts symbols.

    See Also
    --------
    sfumato.model.precision.Precision : The inherited attributes.
    """

    n_symbols: int
    p: float
    q: float
    scale: float
    n_coefficients: int

    def frequencies(self, tally: Tally) -> NDArray[np.float64]:
        """Return the unbiased share of each symbol in each slot, (C/n - q) / (p - q).

        Returns
        -------
        ndarray of shape (n_slots, n_symbols), float64
            Rows sum to one and may be negative from noise. Rows of slots without reports are zero.
        """
        estimates = self.candidate_frequencies(Tally(self._supports(tally), tally.reports))
        if self.has_fixed_size:
            return estimates
        estimates += (1 - estimates.sum(axis=1, keepdims=True)) / self.n_symbols
        return np.where(tally.reports[:, None] > 0, estimates, 0.0)

    def candidate_frequencies(self, tally: Tally) -> NDArray[np.float64]:
        """Return the unbiased shares of counted symbols, which need not sum to one.

        Returns
        -------
        ndarray of the shape of the counts, float64
        """
        n = tally.reports[:, None]
        # Integers below 2**53 are exact in float64. Subtracting before dividing makes rounding
        # relative to the deviation instead of the count.
        estimates = (tally.counts - n * self.q) * self.scale / np.maximum(n, 1)
        return np.where(n > 0, estimates, 0.0)

    def _supports(self, tally: Tally) -> NDArray[np.int64]:
        """Return the number of reports that support each symbol.

        Let S_j be the sum of signs reported for coefficient j. The signs that agree with symbol x
        exceed those that disagree by Z_x = sum over j of (-1)^popcount(j & (x+1)) S_j.
        """
        if self.n_coefficients == 0:
            return tally.counts
        supports = np.empty((len(tally.reports), self.n_symbols), dtype=np.int64)
        for slot, row in enumerate(tally.counts):
            signs = row[0::2] - row[1::2]
            walsh_hadamard(signs)
            supports[slot] = (tally.reports[slot] + signs[1 : self.n_symbols + 1]) // 2
        return supports

    def counts_of(self, supports: NDArray[np.int64], reports: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts of a tally with given supports of each symbol: the inverse of what `frequencies` reads.

        These are the supports, or for `hr` the counts of signed Walsh coefficients, rounded to whole reports.
        """
        if self.n_coefficients == 0:
            return supports
        counts = np.zeros((len(reports), 2 * self.n_coefficients), dtype=np.int64)
        for slot, row in enumerate(supports):
            signs = np.zeros(self.n_coefficients, dtype=np.int64)
            signs[1 : len(row) + 1] = 2 * row - reports[slot]
            walsh_hadamard(signs)  # the transform is its own inverse up to a factor
            signs = np.rint(signs / self.n_coefficients).astype(np.int64)
            counts[slot, 0::2], counts[slot, 1::2] = signs.clip(0), (-signs).clip(0)
        return counts

    def variance(self, frequency: float, n_reports: int) -> float:
        """Return the variance of an estimate over the mechanism's randomness, for fixed symbols.

        If the devices are a sample of n from a population, f (1-f) / n is added.

        Parameters
        ----------
        frequency : float
            f, in [0, 1].
        n_reports : int
            n, at least 1.
        """
        return (self.zero_variance + frequency * self.slope_variance) / n_reports

    def standard_errors(
        self,
        spreads: NDArray[np.float64],
        totals: NDArray[np.float64] | NDArray[np.int64],
        shares: NDArray[np.float64],
        n_reports: int,
    ) -> NDArray[np.float64]:
        """Return standard errors of weighted sums of estimates, sum over symbols of w f.

        For a share f of the people in a set of m of the k symbols,
            n Var = v k/(k-1) * m (1 - m/k)  +  slope * ((1-f) m (m-1) + f (k-m) (k-m-1)) / ((k-1) (k-2))  +  f (1-f),
        without the factor k/(k-1) for uncorrelated indicators. The slope is how much a report of a symbol itself
        varies more. The variance for a fixed symbol is a quadratic polynomial of m without constant term, so its
        values for one symbol and for all symbols but one determine it. The last term is the sampling of devices.
        Weights between 0 and 1 have at most this variance.

        Parameters
        ----------
        spreads : ndarray of shape (m,)
            Sum (w - mean w)^2 over the k symbols for each sum. Negative values are rounding errors.
        totals : ndarray of shape (m,)
            Sum of w over the k symbols.
        shares : ndarray of shape (m,)
            Estimated sums; clipped to [0, 1].
        n_reports : int
            Number of reports behind the estimates.

        Returns
        -------
        ndarray of shape (m,), float64
        """
        share, k = np.clip(shares, 0.0, 1.0), self.n_symbols
        coins = self.spread_variance * np.maximum(spreads, 0.0)
        pairs, others = (np.maximum(m * (m - 1), 0.0) for m in (totals, k - totals))
        slope = self.slope_variance * ((1 - share) * pairs + share * others) / max((k - 1) * (k - 2), 1)
        return np.asarray(np.sqrt(np.maximum(coins + slope + share * (1 - share), 0.0) / n_reports), dtype=np.float64)


@lru_cache(maxsize=32)
def decoder(mechanism: Mechanism) -> Decoder:
    """Return the decoder of a published mechanism.

    p, q and their differences are computed as exact fractions and rounded once.

    Raises
    ------
    UnfitRound
        Reports carry no information about their symbol (p = q).
    """
    p, q = mechanism.support()
    if p == q:
        raise UnfitRound("reports of this mechanism carry no information: p equals q")
    return Decoder(
        **asdict(precision(mechanism)),
        n_symbols=mechanism.n_symbols,
        p=float(p),
        q=float(q),
        scale=float(1 / (p - q)),
        n_coefficients=mechanism.n_coefficients,
    )
