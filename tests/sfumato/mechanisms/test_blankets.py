"""Blankets against the enumerated channels of the mechanisms."""

from fractions import Fraction
from itertools import permutations

import pytest

from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.mechanisms.blankets import LOCAL_STEP_NANO, blanket, largest_local_epsilon
from sfumato.mechanisms.olh import collision_probability
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import WORD_SPAN
from sfumato.privacy.shuffling import delta
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

LOW, HIGH = WORD_SPAN // 10, 9 * WORD_SPAN // 10
ENUMERATED = (
    GrrMechanism(5, HIGH),
    GrrMechanism(5, LOW),
    SsMechanism(5, 2, HIGH),
    SsMechanism(5, 4, LOW),
    OueMechanism(4, LOW),
    OueMechanism(4, HIGH),
    HrMechanism(5, HIGH),
    HrMechanism(5, LOW),
    WindowMechanism(7, 2, HIGH),
    WindowMechanism(7, 5, HIGH),
    WindowMechanism(6, 2, LOW),
)
DELTA = 10**12


class TestChannels:
    @pytest.mark.parametrize("mechanism", ENUMERATED, ids=str)
    def test_the_blanket_equals_the_enumerated_channel(self, mechanism: Mechanism) -> None:
        shown = blanket(mechanism)
        rows = mechanisms.channel(mechanism).values()
        common = sum(map(min, rows), Fraction(0))
        if isinstance(mechanism, OueMechanism | HrMechanism):  # some values name all symbols
            assert common > shown.share
        else:
            assert common == shown.share
        separating = [  # base probability of the values that name the first symbol of a pair only
            sum((row[b] for row in rows if row[a] == row[b] * shown.ratio), Fraction(0)) / shown.share
            for a, b in permutations(range(mechanism.n_symbols), 2)
        ]
        assert max(separating) == shown.named - shown.both
        assert mechanisms.ratio(mechanism) == shown.ratio

    def test_local_hashing_shares_a_hash_by_chance(self) -> None:
        mechanism = OlhMechanism(100, 4, HIGH)
        shown = blanket(mechanism)
        assert shown.ratio == mechanisms.ratio(mechanism)
        assert shown.named == Fraction(1, 4)
        assert shown.both == collision_probability(mechanism) / 4
        assert float(shown.both) == pytest.approx(1 / 16, rel=1e-8)

    @pytest.mark.parametrize(
        ("mechanism", "reason"),
        [
            (DiscreteLaplaceMechanism(2, 8, 4, 1, 100), "noisy vectors"),
            (GrrMechanism(4, WORD_SPAN), "reveal"),
            (GrrMechanism(4, WORD_SPAN // 4), "depend"),
        ],
        ids=("noisy vectors", "revealed symbol", "independent reports"),
    )
    def test_mechanisms_without_a_blanket_are_refused(self, mechanism: Mechanism, reason: str) -> None:
        with pytest.raises(InvalidSpec, match=reason):
            blanket(mechanism)


class TestInverse:
    def test_the_largest_local_epsilon_fits_and_larger_ones_do_not(self) -> None:
        # the subset shrinks to one symbol near 4.7, where the shuffled epsilon falls from .129 to .116
        nano = round(0.12 * NANO)
        found = largest_local_epsilon("ss", 169, 100_000, nano, DELTA)

        def fits(local: int) -> bool:
            return delta(blanket(mechanisms.design("ss", 169, local)), 100_000, nano) <= DELTA

        assert found > 4.71 * NANO
        assert fits(found)
        assert not fits(round(4.7 * NANO))
        assert not any(fits(found + by * LOCAL_STEP_NANO) for by in (1, 2, 5, 10, 20, 50, 100, 200))

    def test_an_unreachable_cost_is_refused(self) -> None:
        with pytest.raises(InvalidSpec, match="costs more"):
            largest_local_epsilon("ss", 64, 10, 1_000_000, DELTA)

    def test_a_cost_above_every_local_one_gives_the_maximum(self) -> None:
        assert largest_local_epsilon("grr", 64, 10, 40 * NANO, DELTA) == 32 * NANO
