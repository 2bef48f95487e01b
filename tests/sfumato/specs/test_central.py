"""Delta of algorithms over records."""

import pytest

from sfumato.errors import InvalidDelta, InvalidSpec
from sfumato.specs import CENTRAL_ALGORITHMS, Auto, PrivateKmeans, central_algorithm_from_wire, to_wire

TAKES_NONE = sorted(CENTRAL_ALGORITHMS.keys() - {"auto", "private_kmeans"})


class TestDelta:
    @pytest.mark.parametrize("tag", TAKES_NONE)
    def test_most_algorithms_have_none(self, tag: str) -> None:
        params = central_algorithm_from_wire({"type": tag, "epsilon": 1.0, "clusters": 3})
        assert params.delta == 0
        assert "delta" not in to_wire(params)
        for delta in (0.0, 1e-6):
            with pytest.raises(InvalidSpec, match="unknown delta"):
                central_algorithm_from_wire({"type": tag, "epsilon": 1.0, "clusters": 3, "delta": delta})

    @pytest.mark.parametrize("delta", [0, 1e-15, 1e-3])
    @pytest.mark.parametrize("kind", [Auto, PrivateKmeans])
    def test_some_have_one(self, kind: type[Auto | PrivateKmeans], delta: float) -> None:
        params = kind(1.0, 3, delta=delta)
        assert central_algorithm_from_wire(to_wire(params)) == params
        assert to_wire(params)["delta"] == delta

    @pytest.mark.parametrize("delta", [-1e-6, 1e-16, 0.0011, 1.0, float("nan"), float("inf")])
    def test_out_of_range_is_refused(self, delta: float) -> None:
        with pytest.raises(InvalidDelta, match="delta"):
            PrivateKmeans(1.0, 3, delta=delta)

    @pytest.mark.parametrize("delta", ["1e-6", None, True, [1e-6]])
    def test_of_another_type_is_refused(self, delta: object) -> None:
        with pytest.raises(InvalidSpec, match="delta must be a number"):
            PrivateKmeans(1.0, 3, delta=delta)  # type: ignore[arg-type]
