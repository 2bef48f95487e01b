"""The contract of every mechanism, for all entries of the registry."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustering.random import SeededEntropy
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import MECHANISMS, DiscreteLaplaceMechanism, Mechanism, design
from sfumato.privacy.accounting import NANO
from sfumato.specs import mechanism_from_wire, to_wire
from sfumato.validation import parameters_of

PAGE = (Path(__file__).parents[3] / "docs" / "mechanisms.md").read_text()
N = 500
WRONG: tuple[Any, ...] = ("4", 2.5, float("nan"), True, None, [1])

every_mechanism = pytest.mark.parametrize("tag", MECHANISMS)


def designed(tag: str, epsilon_nano: int = 2 * NANO, size: int = 16) -> Mechanism:
    """Return a mechanism for 16 symbols, or for vectors of two features."""
    if tag == DiscreteLaplaceMechanism.type:
        return DiscreteLaplaceMechanism.design(2, size, epsilon_nano)
    return design(tag, size, epsilon_nano)


def symbols_of(mechanism: Mechanism, n: int = N) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(3)
    if mechanism.form == "vector":
        return rng.integers(0, 17, (n, 2))
    return rng.integers(0, mechanism.n_symbols, n)


@every_mechanism
class TestEveryMechanism:
    def test_json_makes_a_round_trip(self, tag: str) -> None:
        mechanism = designed(tag)
        assert mechanism_from_wire(to_wire(mechanism)) == mechanism
        with pytest.raises(InvalidSpec, match="unknown colour: use"):
            mechanism_from_wire(to_wire(mechanism) | {"colour": 1})

    def test_a_bad_value_is_refused_by_name(self, tag: str) -> None:
        wire = to_wire(designed(tag))
        for name, declared in parameters_of(MECHANISMS[tag]).items():
            assert declared.minimum is not None
            assert declared.maximum is not None
            outside = [int(declared.minimum) - 1, int(declared.maximum) + 1, int(declared.maximum) * 2 + 1]
            for value in (*WRONG, *outside):
                given = str(value) if declared.is_word and type(value) is int else value
                if declared.is_word and given == "4":
                    continue  # a valid word
                # a scale of 0 is for dry runs, and has no finite cost
                with pytest.raises(InvalidSpec, match=f"{name}|its epsilon is unbounded"):
                    mechanism_from_wire(wire | {name: given}).epsilon_nano()

    @pytest.mark.parametrize("epsilon_nano", [NANO // 10, NANO, 8 * NANO])
    def test_the_cost_is_at_most_the_design_and_grows_with_it(self, tag: str, epsilon_nano: int) -> None:
        smaller, larger = (designed(tag, each).epsilon_nano() for each in (epsilon_nano, 2 * epsilon_nano))
        assert 0 < smaller <= epsilon_nano
        assert smaller < larger

    def test_equal_entropy_gives_equal_reports(self, tag: str) -> None:
        mechanism = designed(tag)
        symbols = symbols_of(mechanism)
        first, second, other = (mechanism.perturb_many(symbols, SeededEntropy(seed)) for seed in (1, 1, 2))
        assert (first == second).all()
        assert (first != other).any()
        assert (first.shape, first.dtype) == ((N, mechanism.value_bytes), np.uint8)

    def test_every_report_is_valid_and_other_bytes_are_not_accepted(self, tag: str) -> None:
        mechanism = designed(tag)
        symbols = symbols_of(mechanism, 50)
        values = mechanism.perturb_many(symbols, SeededEntropy(1))
        assert mechanism.are_values(values).all()
        assert all(mechanism.is_value(row.tobytes()) for row in values)
        own = tuple(symbols[0].tolist()) if symbols.ndim == 2 else int(symbols[0])
        assert mechanism.is_value(mechanism.perturb(own, SeededEntropy(1)))
        for value in (b"", values[0].tobytes() + b"\0", values[0].tobytes()[:-1]):
            assert not mechanism.is_value(value)

    def test_a_symbol_out_of_range_is_refused_without_naming_it(self, tag: str) -> None:
        mechanism = designed(tag)
        for symbol in (-1, mechanism.n_symbols, (17, 0), (0, -1), (0,), (0, 0, 0)):
            with pytest.raises(InvalidSpec, match="out of range") as refusal:
                mechanism.perturb(symbol, SeededEntropy(1))
            assert "17" not in str(refusal.value)
        for symbols in (np.array([-1]), np.array([[0, 17]]), np.array([mechanism.n_symbols]), np.zeros((2, 3), int)):
            with pytest.raises(InvalidSpec, match="out of range"):
                mechanism.perturb_many(symbols, SeededEntropy(1))

    def test_no_device_sends_no_report(self, tag: str) -> None:
        mechanism = designed(tag)
        assert mechanism.perturb_many(symbols_of(mechanism, 0), SeededEntropy(1)).shape == (0, mechanism.value_bytes)

    def test_has_documentation(self, tag: str) -> None:
        assert f"\n## `{tag}`\n" in PAGE
        assert (MECHANISMS[tag].__doc__ or "").strip()
