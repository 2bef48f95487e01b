"""What the audit says of devices: the sound one holds in every scene, broken ones are caught."""

import pytest

from audit import device_bulk, device_exact, device_replay, sampler_draws
from audit.check import Check, Effort, Leak, Setting
from audit.device_exact import SCENES
from audit.planted import samplers
from audit.planted.devices import LEAKS
from sfumato.accounting import NANO

QUICK = Setting(Effort.QUICK, 1)
CHECKS = (*device_exact.CHECKS, *device_replay.CHECKS, *device_bulk.CHECKS)


class TestSound:
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
    def test_it_holds(self, check: Check) -> None:
        (found,) = check.run(QUICK)
        assert found.why == ""
        assert found.holds
        assert found.trials >= 4

    @pytest.mark.parametrize("check", device_exact.CHECKS, ids=lambda check: check.subject)
    def test_the_posted_cost_is_reached_so_that_any_more_would_be_found(self, check: Check) -> None:
        (found,) = check.run(QUICK)
        assert found.measured == pytest.approx(found.charged, abs=1e-9)

    def test_scenes_cost_what_rules_say(self) -> None:
        posted = {scene.name: scene.posted / NANO for scene in SCENES}
        assert posted["overlapping rounds"] == 1.25
        assert posted["disjoint rounds"] == 1.0
        assert posted["three rounds, partly overlapping"] == 1.75

    def test_it_sees_most_of_what_is_spent(self) -> None:
        (found,) = device_bulk.CHECKS[0].run(QUICK)
        assert found.trials >= 1_000_000
        assert found.charged > found.measured > 0.9 * found.charged


class TestLeaks:
    @pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
    def test_each_is_caught(self, leak: Leak) -> None:
        found = leak.run(QUICK)
        assert any(not finding.holds and finding.why for finding in found)
        assert {finding.subject for finding in found} == {leak.subject} <= {check.subject for check in CHECKS}


@pytest.mark.slow
@pytest.mark.ci
class TestSeeds:
    @pytest.mark.parametrize("seed", range(2, 6))
    def test_there_is_no_false_alarm_and_no_leak_slips_through(self, seed: int) -> None:
        setting = Setting(Effort.QUICK, seed)
        seeded = (*device_replay.CHECKS, *device_bulk.CHECKS, *sampler_draws.CHECKS)
        assert [found.why for check in seeded for found in check.run(setting) if not found.holds] == []
        subjects = {check.subject for check in seeded}
        leaks = [leak for leak in (*LEAKS, *samplers.LEAKS) if leak.subject in subjects]
        assert len(leaks) >= 10
        assert [leak.name for leak in leaks if all(found.holds for found in leak.run(setting))] == []
