"""Test what the registry of plans refuses."""

import pytest

from clustering.registry import start
from clustering.simulate import simulate_central
from sfumato.errors import InvalidSpec
from sfumato.specs import (
    ALGORITHMS,
    Auto,
    Feature,
    GridEncoding,
    LdpKmeans,
    PhaseSketch,
    ShiftedGrid,
    job_from_wire,
)

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def run_plan(params, features):
    return start(params, features, 1000)


def run_over_records(params, features):
    return simulate_central(params, [[0.5] * len(features)], seed=1, features=features)


class TestStart:
    def test_rejects_unknown_algorithms(self):
        with pytest.raises(InvalidSpec):
            start(GridEncoding((2, 2)), XY, 1000)  # type: ignore[arg-type]

    def test_rejects_zero_expected_reports(self):
        with pytest.raises(InvalidSpec):
            start(ShiftedGrid(epsilon=1), XY, 0)

    def test_rejects_periodic_features_that_a_method_does_not_take(self):
        of_clock = (Feature("hour", 0, 24, "h", periodic=True), XY[0])
        takers = {tag for tag, kind in ALGORITHMS.items() if kind.definition.periodic}
        assert takers == {"shifted_grid", "grid_kmeans", "phase_sketch", "density_map", "private_kmeans"}
        for tag, kind in ALGORITHMS.items():
            if tag in takers or tag == "auto":
                continue
            params = job_from_wire({"type": tag, "epsilon": 1.0, "clusters": 2})
            run, taker = (
                (run_plan, "shifted_grid or grid_kmeans or phase_sketch")
                if "local" in kind.definition.trust
                else (run_over_records, "density_map or private_kmeans")
            )
            with pytest.raises(InvalidSpec, match=f"{tag} does not take periodic features, and hour is .*use {taker}$"):
                run(params, of_clock)
        of_many = (*of_clock, *(Feature(f"x{place}", 0, 1) for place in range(4)))
        with pytest.raises(InvalidSpec, match=r"hour is periodic: use phase_sketch$"):
            start(LdpKmeans(epsilon=1, clusters=2), of_many, 1000)  # the others have fewer features
        assert next(start(Auto(epsilon=1, clusters=2), of_clock, 1000)).encoding.circles == (0,)
        assert next(start(Auto(epsilon=1, clusters=2, shape="round"), of_clock, 1000)).features == of_clock
        with pytest.raises(InvalidSpec, match="refine=lloyd does not take periodic features: use refine='none'"):
            start(PhaseSketch(1.0, 2, refine="lloyd"), of_clock, 1000)
        with pytest.raises(InvalidSpec, match="private bounds do not take periodic features"):
            run_over_records(job_from_wire({"type": "density_map", "epsilon": 1.0, "bounds": "private"}), of_clock)
