"""Which algorithms over records take a delta, and which deltas."""

import pytest

from sfumato.errors import InvalidDelta, InvalidSpec
from sfumato.specs import CENTRAL_ALGORITHMS, GatedGridKmeans, central_algorithm_from_wire, to_wire

TAKES_NONE = sorted(CENTRAL_ALGORITHMS.keys() - {"gated_grid_kmeans"})


class TestDelta:
    @pytest.mark.parametrize("tag", TAKES_NONE)
    def test_most_take_none(self, tag: str) -> None:
        params = central_algorithm_from_wire({"type": tag, "epsilon": 1.0, "clusters": 3})
        assert params.delta == 0
        assert "delta" not in to_wire(params)
        for delta in (0.0, 1e-6):
            with pytest.raises(InvalidSpec, match="unknown delta"):
                central_algorithm_from_wire({"type": tag, "epsilon": 1.0, "clusters": 3, "delta": delta})

    @pytest.mark.parametrize("delta", [0, 0.0, 1e-15, 1e-6, 1e-3])
    def test_the_gated_grid_takes_one_and_keeps_it_on_the_wire(self, delta: float) -> None:
        params = GatedGridKmeans(1.0, 3, delta=delta)
        assert central_algorithm_from_wire(to_wire(params)) == params
        assert to_wire(params)["delta"] == delta

    def test_without_one_its_guarantee_is_pure(self) -> None:
        assert GatedGridKmeans(1.0, 3).delta == 0

    @pytest.mark.parametrize("delta", [-1e-6, 1e-16, 0.0011, 1.0, float("nan"), float("inf")])
    def test_one_out_of_range_is_refused(self, delta: float) -> None:
        with pytest.raises(InvalidDelta, match="delta"):
            GatedGridKmeans(1.0, 3, delta=delta)

    @pytest.mark.parametrize("delta", ["1e-6", None, True, [1e-6]])
    def test_what_is_no_number_is_refused(self, delta: object) -> None:
        with pytest.raises(InvalidSpec, match="delta must be a number"):
            GatedGridKmeans(1.0, 3, delta=delta)  # type: ignore[arg-type]
