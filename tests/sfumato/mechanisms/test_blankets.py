"""Blankets against the enumerated channels of the mechanisms."""

from fractions import Fraction
from itertools import permutations

import pytest

from sfumato.errors import InvalidSpec
from sfumato.privacy.entropy import WORD_SPAN
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
        shown = mechanism.blanket()
        rows = mechanism.channel().values()
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
        assert mechanism.ratio() == shown.ratio

    def test_local_hashing_shares_a_hash_by_chance(self) -> None:
        mechanism = OlhMechanism(100, 4, HIGH)
        shown = mechanism.blanket()
        assert shown.ratio == mechanism.ratio()
        assert shown.named == Fraction(1, 4)
        assert shown.both == mechanism.collision_probability() / 4
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
            mechanism.blanket()
