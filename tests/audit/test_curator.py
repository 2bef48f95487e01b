"""A curator's answers as a black box: the sound pass, seven tenths of the noise fail, bounds lie below the truth."""

from collections.abc import Sequence

import numpy as np
import pytest

from audit import curator, curator_block, curator_tree
from audit.check import Effort, Setting
from audit.curator import PROBES, Alone, lowest_bit
from audit.curator_block import rho_bound
from audit.planted import curator as planted
from clustering.curator import Curator

SETTING = Setting(Effort.QUICK, 3)
FEW = 1 << 15


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Trials enough to see thirty percent, in little time; all of them where a test is slow."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(curator, "CELLS", FEW)
        monkeypatch.setattr(curator, "COUNTS", 4000)
        monkeypatch.setattr(curator, "TREES", 12)
        monkeypatch.setattr(curator_block, "CELLS", FEW)


@pytest.mark.parametrize("probe", PROBES)
class TestEachAnswer:
    def test_tells_no_more_than_it_is_charged_and_not_much_less(self, probe: str) -> None:
        found = curator.look(Curator, probe, SETTING)
        assert found.holds
        assert found.why == ""
        assert found.charged is not None
        assert found.measured is not None
        assert 0.5 * found.charged < found.measured <= found.charged

    def test_at_seven_tenths_of_its_noise_is_found_out(self, probe: str) -> None:
        if probe == "counts, lowest bit":
            assert not curator.look(planted.FloatNoise, probe, SETTING).holds
            return
        found = curator.look(planted.NoiseAt70, probe, SETTING)
        assert not found.holds
        assert "at least" in found.why


class TestOtherLeaks:
    def test_a_sampler_that_draws_less_than_it_says(self) -> None:
        assert not curator.look(planted.DrawsAt70, "counts", SETTING).holds

    def test_noise_of_one_record_where_a_user_has_five(self) -> None:
        found = curator.look(planted.UserBoundIgnored, "counts of users", SETTING)
        assert found.measured is not None
        assert found.measured > 3

    @pytest.mark.parametrize("probe", curator_block.PROBES)
    def test_a_block_passes_and_at_seven_tenths_of_its_noise_does_not(self, probe: str) -> None:
        sound = curator_block.look(Curator, probe, SETTING)
        assert sound.holds
        assert sound.charged is not None
        assert sound.measured is not None
        assert sound.measured > 0.6 * sound.charged
        assert not curator_block.look(planted.GaussianAt70, probe, SETTING).holds


class TestParts:
    def test_cells_of_people_are_disjoint_and_hold_all_their_records(self) -> None:
        labels = Alone(3, 5).index(np.zeros((15, 1), np.int32))
        assert np.bincount(labels).tolist() == [5, 5, 5]

    def test_the_lowest_bit_of_a_number(self) -> None:
        assert lowest_bit(np.array([1.0, 2.0, 3.0, -12.0, 0.5, 0.75, 0.0])).tolist() == [0, 1, 0, 2, -1, -2, 64]
        assert lowest_bit(np.array([2.0**-60, 1 + 2.0**-52])).tolist() == [-60, -52]
        assert lowest_bit(np.array([6, 7, -8], dtype=np.int64)).tolist() == [1, 0, 3]

    @pytest.mark.parametrize("mean", [0.5, 2.0, 4.0])
    def test_rho_lies_above_its_bound_and_not_far(self, mean: float) -> None:
        rng = np.random.default_rng(4)
        seen, other = rng.normal(mean, 1, 200_000), rng.normal(0, 1, 200_000)
        assert 0.45 * mean**2 / 2 < rho_bound(seen, other) <= mean**2 / 2
        assert rho_bound(other, other.copy()) == 0

    def test_the_enumerated_tree_is_a_check(self) -> None:
        (found,) = curator_tree.CHECKS[0].run(SETTING)
        assert found.holds
        assert found.trials > 10_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestTheWholeOfIt:
    """As the audit runs it."""

    @pytest.mark.parametrize("leak", planted.LEAKS, ids=lambda leak: f"{leak.name}: {leak.subject}")
    def test_every_leak_is_caught(self, leak) -> None:
        assert any(not finding.holds for finding in leak.run(Setting(Effort.QUICK, 1)))

    @pytest.mark.ci
    @pytest.mark.parametrize("seed", [1, 2])
    def test_no_sound_form_is_accused(self, seed: int) -> None:
        checks: Sequence = (*curator.CHECKS, *curator_block.CHECKS, *curator_tree.CHECKS)
        found = [finding for check in checks for finding in check.run(Setting(Effort.QUICK, seed))]
        assert [finding for finding in found if not finding.holds] == []
