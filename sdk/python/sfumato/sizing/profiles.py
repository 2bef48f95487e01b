"""The division of the cost of a profile among its queries, from public numbers alone."""

from fractions import Fraction
from typing import NamedTuple

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, PICO, rho_of
from sfumato.specs.central import Profile

EQUAL_ATTRIBUTES = 5  # up to this number all tables are released without a first pass
FIRST_PASS = 0.1  # part of the cost for the scores of attributes, by default
COUNT_SHARE = Fraction(1, 100)  # part of the cost for the number of records, in a first pass
EXPECTED_CHOSEN = 6  # attributes that a forecast expects after a first pass


class ProfilePlan(NamedTuple):
    """The division of the cost of a profile.

    Attributes
    ----------
    has_block : bool
        Whether all queries share a block of Gaussian noise. Otherwise delta is not spent.
    first_pass : float
        Part of the cost for the scores; 0 releases all tables.
    n_tables : int
        Number of tables that a forecast expects.
    variance : float
        Noise variance of a count if `n_tables` tables are released.
    """

    has_block: bool
    first_pass: float
    n_tables: int
    variance: float


def plan_profile(params: Profile, n_attributes: int, max_per_user: int = 1) -> ProfilePlan:
    """Return the division of the cost of a profile of this number of attributes.

    With a delta, a first pass uses the block: its noise grows with the root of the number of attributes. Without a
    first pass, the kind with less noise is used.

    Raises
    ------
    InvalidSpec
        Epsilon is too small.
    """
    first = FIRST_PASS if n_attributes > EQUAL_ATTRIBUTES else 0.0
    first = first if params.first_pass is None else params.first_pass
    if n_attributes == 1:
        first = 0.0
    n_tables = min(n_attributes, EXPECTED_CHOSEN) if first else n_attributes
    left = 1 - first - float(COUNT_SHARE) if first else 1.0
    epsilon_nano, delta_atto = params.epsilon_nano, params.delta_atto
    pure = 2 * (n_tables * max_per_user * NANO / (epsilon_nano * left)) ** 2
    rho = rho_of(epsilon_nano, delta_atto) * left / PICO if delta_atto else 0.0
    if rho <= 0:
        return ProfilePlan(False, first, n_tables, pure)
    block = n_tables * max_per_user**2 / (2 * rho) + float(ADDED_VARIANCE)
    has_block = bool(first) or block < pure
    return ProfilePlan(has_block, first, n_tables, block if has_block else pure)


def check_profile(params: Profile, n_attributes: int) -> None:
    """Raise InvalidSpec if a profile of this number of attributes has an epsilon that is too small to divide."""
    if params.epsilon_nano < 1000 * n_attributes:
        raise InvalidSpec(f"epsilon is too small for a profile of {n_attributes} attributes: increase it")
