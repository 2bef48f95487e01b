"""Black-box checks of a curator's query answers: sound noise passes, noise at 70 % fails, bounds are below epsilon."""

import numpy as np
import pytest

from audit.central import curator_queries, gaussian_blocks, trees
from audit.central.curator_queries import PROBES, CellPerPerson
from audit.central.gaussian_blocks import bound_rho
from audit.checks.check import Effort, Setting
from audit.planted import curator as planted
from clustering.central.curator import Curator

SETTING = Setting(Effort.QUICK, 3)
N_CELLS = 1 << 14


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials to the number that detects 30 %."""
    monkeypatch.setattr(curator_queries, "N_CELLS", N_CELLS)
    monkeypatch.setattr(curator_queries, "N_COUNTS", 2500)
    monkeypatch.setattr(curator_queries, "N_TREES", 12)
    monkeypatch.setattr(gaussian_blocks, "N_CELLS", N_CELLS)


@pytest.mark.parametrize("probe", PROBES)
class TestQueryAnswers:
    @pytest.mark.release
    def test_the_measured_epsilon_is_below_the_charge_and_close(self, probe: str) -> None:
        finding = curator_queries.check_answer(Curator, probe, SETTING)
        assert finding.holds
        assert finding.why == ""
        assert 0.5 * finding.charged < finding.measured <= finding.charged


class TestOtherLeaks:
    def test_a_sampler_below_its_stated_scale_is_detected(self) -> None:
        assert not curator_queries.check_answer(planted.SamplesAt70, "counts", SETTING).holds

    def test_noise_for_one_record_of_a_user_with_five_is_detected(self) -> None:
        assert curator_queries.check_answer(planted.UserBoundIgnored, "counts of users", SETTING).measured > 3

    @pytest.mark.parametrize("probe", gaussian_blocks.PROBES)
    def test_a_sound_block_passes_and_noise_at_70_percent_fails(self, probe: str) -> None:
        sound = gaussian_blocks.check_block_answer(Curator, probe, SETTING)
        assert sound.holds
        assert sound.measured > 0.6 * sound.charged
        assert not gaussian_blocks.check_block_answer(planted.GaussianAt70, probe, SETTING).holds


class TestParts:
    def test_cells_of_persons_are_disjoint_and_contain_all_records(self) -> None:
        labels = CellPerPerson(3, 5).index(np.zeros((15, 1), np.int32))
        assert np.bincount(labels).tolist() == [5, 5, 5]

    @pytest.mark.parametrize("mean", [0.5, 2.0, 4.0])
    def test_the_bound_on_rho_is_below_rho_and_close(self, mean: float) -> None:
        rng = np.random.default_rng(4)
        sample, other = rng.normal(mean, 1, 200_000), rng.normal(0, 1, 200_000)
        assert 0.85 * mean**2 / 2 < bound_rho(sample, other) <= mean**2 / 2
        assert bound_rho(other, other.copy()) == 0

    def test_the_enumeration_of_the_tree_is_a_check(self) -> None:
        (found,) = trees.CHECKS[0].run(SETTING)
        assert found.holds
        assert found.trials > 10_000
