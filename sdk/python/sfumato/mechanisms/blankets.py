"""Privacy blankets of the mechanisms, from their exact channels, for reports that a shuffler releases.

The encoding does not change the cost. A slot is drawn independently of the record, so it is part of the blanket, and n
is the number of honest reports over all slots. Given the slot, the mechanism perturbs one symbol, and the blanket
covers each pair of symbols. This needs reports of equal length for all slots and values.
"""

from fractions import Fraction

from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.mechanisms.channels import exact_evidence
from sfumato.mechanisms.olh import collision_probability
from sfumato.privacy import shuffling
from sfumato.privacy.accounting import EPSILON_MAX_NANO, NANO
from sfumato.privacy.shuffling import Blanket
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    GrrMechanism,
    HrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    SsMechanism,
    WindowMechanism,
)

LOCAL_STEP_NANO = NANO // 100  # local costs that `largest_local_epsilon` tries
_LOOKAHEAD = 100  # steps above the result of the bisection that are tried


def blanket(mechanism: Mechanism) -> Blanket:
    """Return the blanket of a mechanism.

    The base distribution is uniform over the values; for `oue`, k independent coins of probability q. The blanket is
    the largest common part of the distributions of all symbols, except at values that name all symbols. There the
    common part is larger, and the bound leaves this out.

    Raises
    ------
    InvalidSpec
        No blanket is known (noisy vectors), or a report reveals its symbol or is independent of it.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("no privacy blanket is known for noisy vectors; a shuffler cannot reduce their stated cost")
    own, other = exact_evidence(mechanism)
    if own == other or not own or not other:
        raise InvalidSpec("a privacy blanket needs reports that depend on their symbol and do not reveal it")
    named, both = _naming(mechanism)
    if own < other:  # a value then supports the symbols that it does not name
        own, other, named, both = other, own, 1 - named, 1 - 2 * named + both
    return Blanket(own / other, named, both)


def _naming(mechanism: Mechanism) -> tuple[Fraction, Fraction]:
    """Return the probabilities, under the base distribution, that a value names one symbol, and both of a pair.

    Pairs are equal except for windows. There the pair is the farthest one on the circle.
    """
    k = mechanism.n_symbols
    if isinstance(mechanism, GrrMechanism):
        return Fraction(1, k), Fraction(0)
    if isinstance(mechanism, SsMechanism):
        d = mechanism.subset_size
        return Fraction(d, k), Fraction(d * (d - 1), k * (k - 1))
    if isinstance(mechanism, OueMechanism):
        _, other = mechanisms.support(mechanism)
        return other, other**2
    if isinstance(mechanism, OlhMechanism):  # the sent hash is uniform, and the two symbols share it if they collide
        return Fraction(1, mechanism.hash_range), collision_probability(mechanism) / mechanism.hash_range
    if isinstance(mechanism, HrMechanism):  # two rows of a Walsh matrix agree in half of the columns
        return Fraction(1, 2), Fraction(1, 4)
    if isinstance(mechanism, WindowMechanism):
        w = mechanism.window_size
        return Fraction(w, k), Fraction(max(0, 2 * w - k), k)
    raise InvalidSpec("no privacy blanket is known for this mechanism")


def largest_local_epsilon(kind: str, n_symbols: int, n: int, epsilon_nano: int, delta_atto: int) -> int:
    """Return the largest local epsilon for which n honest reports cost at most (epsilon, delta) after the shuffler.

    `ss`, `olh` and `window` round their subset, range or window to a whole number, so the shuffled epsilon falls by up
    to a tenth where this number changes. A bisection finds one solution, and each of the next hundred steps is tried.

    Parameters
    ----------
    kind : {'auto', 'grr', 'ss', 'oue', 'olh', 'hr', 'window'}
        As for `sfumato.mechanisms.design`.
    n_symbols : int
    n : int
        Number of honest reports in the release.
    epsilon_nano, delta_atto : int
        Largest cost towards an observer of the release.

    Returns
    -------
    int
        Nano-epsilon for `design`, a multiple of 0.01 in [0.01, 32].

    Raises
    ------
    InvalidSpec
        The mechanism does not support so many symbols, or 0.01 already costs more.
    """

    def fits(step: int) -> bool:
        mechanism = mechanisms.design(kind, n_symbols, step * LOCAL_STEP_NANO)
        return shuffling.delta(blanket(mechanism), n, epsilon_nano) <= delta_atto

    low, high, largest = 0, EPSILON_MAX_NANO // LOCAL_STEP_NANO + 1, EPSILON_MAX_NANO // LOCAL_STEP_NANO
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise InvalidSpec("even a local epsilon of 0.01 costs more than this after the shuffler")
    steps = range(min(low + _LOOKAHEAD, largest), low, -1)
    return next((step for step in steps if fits(step)), low) * LOCAL_STEP_NANO
