"""Windows of a series over records: the loaded records are sound, and each fault is detected by the claim it breaks."""

import pytest

from audit.central.window_records import BOUNDED, DISJOINT, OWN_RECORDS, LoadWindow, check_windows
from audit.checks.check import Effort, Setting
from audit.planted import window_records as planted

SETTING = Setting(Effort.QUICK, 5)


def test_windows_are_sound() -> None:
    findings = check_windows(SETTING)
    assert [finding.claim for finding in findings if finding.holds] == [DISJOINT, BOUNDED, OWN_RECORDS]


@pytest.mark.parametrize(
    ("load", "claim"),
    [
        (planted.load_without_end, DISJOINT),
        (planted.bound_each_window, BOUNDED),
        (planted.keep_the_last, BOUNDED),
        (planted.fill_the_window, OWN_RECORDS),
    ],
)
def test_each_fault_is_detected(load: LoadWindow, claim: str) -> None:
    assert claim in {finding.claim for finding in check_windows(SETTING, load) if not finding.holds}
