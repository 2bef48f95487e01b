"""Checks of the path of sealed reports, and their planted leaks."""

import pytest

from audit.checks.check import Check, Effort, Leak, Setting
from audit.devices.releases import CHECKS
from audit.planted.releases import LEAKS

SETTING = Setting(Effort.QUICK, 3)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_sound_code_passes(check: Check) -> None:
    (finding,) = check.run(SETTING)
    assert finding.holds, finding.why
    assert finding.trials >= 6


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unequal lengths", "lengths"),
        ("unpermuted release", "order of the rows"),
        ("permutation with a known seed", "order of another release"),
        ("linker by the order of arrival", "order of arrivals"),
        ("rows in the order of arrival", "reports before"),
        ("linker by the time of arrival", "arrivals before"),
        ("missing outer layer", "300 of 300 reports have bytes"),
        ("outer layer kept in the batch", "300 of 300 reports have bytes"),
        ("copies in the batch", "each report once"),
        ("batch in the order of arrival", "order of arrivals"),
        ("resent outer layer", "bytes in common"),
        ("unequal outer layers", "lengths"),
        ("count before the release", "public before"),
        ("stored reports of unequal lengths", "another length"),
        ("min_batch ignored by the shuffler", "fewer than min_batch"),
        ("second permutation", "second time"),
        ("second release", "after its release"),
        ("min_batch ignored by the service", "fewer than min_batch"),
        ("unverified signature", "another round"),
        ("second batch", "second batch"),
    ],
)
def test_planted_leaks_are_detected(name: str, why: str) -> None:
    (leak,) = (leak for leak in LEAKS if leak.name == name)
    (finding,) = leak.run(SETTING)
    assert not finding.holds
    assert why in finding.why


def test_each_leak_is_in_a_checked_subject() -> None:
    leaks: tuple[Leak, ...] = LEAKS
    assert len({leak.name for leak in leaks}) == len(leaks) == 20
    assert {leak.subject for leak in leaks} == {check.subject for check in CHECKS}
