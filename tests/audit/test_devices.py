"""Checks of devices: with other seeds too, sound devices pass and broken ones are detected."""

import pytest

from audit.checks.check import Effort, Setting
from audit.devices import bulk, replay
from audit.devices.exact import CASES
from audit.mechanisms import sampler_draws
from audit.planted import samplers
from audit.planted.devices import LEAKS
from sfumato.privacy.accounting import NANO


def test_charges_of_the_cases() -> None:
    charged = {case.name: case.charged / NANO for case in CASES}
    assert charged["overlapping rounds"] == 1.25
    assert charged["disjoint rounds"] == 1.0
    assert charged["three rounds, partly overlapping"] == 1.75


@pytest.mark.release
@pytest.mark.parametrize("seed", range(2, 6))
def test_sound_code_passes_and_leaks_are_detected(seed: int) -> None:
    setting = Setting(Effort.QUICK, seed)
    seeded = (*replay.CHECKS, *bulk.CHECKS, *sampler_draws.CHECKS)
    assert [finding.why for check in seeded for finding in check.run(setting) if not finding.holds] == []
    subjects = {check.subject for check in seeded}
    leaks = [leak for leak in (*LEAKS, *samplers.LEAKS) if leak.subject in subjects]
    assert len(leaks) >= 10
    assert [leak.name for leak in leaks if all(finding.holds for finding in leak.run(setting))] == []
