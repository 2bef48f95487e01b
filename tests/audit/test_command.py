"""`sfumato audit`: what it prints, and when it is content."""

import json

import pytest

from audit import __main__ as command
from audit import catalogue
from audit.check import Check, Finding, Leak, Setting

SOUND = Finding("dice", "spends 1", "exact", 6, 1.0, 0.5)
BROKEN = Finding("dice", "spends 1", "exact", 6, 1.0, 1.5, holds=False, why="it spends 1.5")


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch):
    """Runs the command over a catalogue of the test's own."""

    def run(*arguments: str, checks=(), leaks=()) -> int:
        monkeypatch.setattr(catalogue, "CHECKS", [Check("dice", lambda _, f=found: f) for found in checks])
        monkeypatch.setattr(catalogue, "LEAKS", [Leak(name, "dice", lambda _, f=found: f) for name, found in leaks])
        return command.main(["--processes", "1", "--seed", "7", *arguments])

    return run


class TestClaims:
    def test_that_hold_make_a_row_each_and_status_0(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look("--quick", checks=[[SOUND, SOUND], [SOUND]]) == 0
        head, *rows, last = told(capsys)
        assert head.split() == ["subject", "claim", "method", "trials", "charged", "measured", "verdict"]
        assert [row.split() for row in rows] == [["dice", "spends", "1", "exact", "6", "1", "0.5", "holds"]] * 3
        assert last.startswith("3 of 3 claims hold (")
        assert last.endswith("--seed 7)")

    def test_one_that_does_not_is_told_with_its_reason(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look(checks=[[SOUND, BROKEN], [SOUND]]) == 1
        lines = told(capsys)
        assert lines[2].endswith("FAILS: it spends 1.5")
        assert lines[-1].startswith("2 of 3 claims hold (")

    def test_one_that_cannot_be_looked_at_is_no_success(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        class Broken:
            def __iter__(self):
                raise ZeroDivisionError("no dice")

        assert look(checks=[Broken(), [SOUND]]) == 1
        lines = told(capsys)
        assert lines[1].endswith("BROKE: ZeroDivisionError: no dice")
        assert lines[-1].startswith("1 of 1 claims hold; 1 could not be looked at (")

    def test_a_check_of_nothing_is_no_success(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look(checks=[[]]) == 1
        assert "it found nothing to look at" in told(capsys)[1]


class TestPlantedLeaks:
    def test_are_caught_by_name(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look("--planted", leaks=[("loaded", [SOUND, BROKEN]), ("twice thrown", [BROKEN])]) == 0
        lines = told(capsys)
        assert [line.split("  ")[0] for line in lines[1:3]] == ["loaded", "twice thrown"]
        assert all(line.endswith("caught: it spends 1.5") for line in lines[1:3])
        assert lines[-1].startswith("2 of 2 planted leaks were caught (")

    def test_one_that_is_missed_is_told(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look("--planted", leaks=[("loaded", [SOUND]), ("twice thrown", [BROKEN])]) == 1
        lines = told(capsys)
        assert lines[1].endswith("MISSED")
        assert lines[-1].startswith("1 of 2 planted leaks were caught (")

    def test_one_that_breaks_its_check_is_not_caught(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look("--planted", leaks=[("loaded", None)]) == 1
        assert told(capsys)[-1].startswith("0 of 1 planted leaks were caught; 1 could not be looked at (")


class TestOptions:
    def test_json_is_a_line_each_and_one_that_sums_up(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        assert look("--json", checks=[[SOUND], [BROKEN]]) == 1
        first, second, last = map(json.loads, told(capsys))
        assert (first["right"], second["right"]) == (True, False)
        assert second["findings"][0]["why"] == "it spends 1.5"
        assert (last["right"], last["looked_at"], last["wrong"], last["claims"], last["faults"]) == (False, 2, 1, 2, 1)

    def test_only_takes_what_has_it_in_its_name(self, look, capsys: pytest.CaptureFixture[str]) -> None:
        leaks = [("loaded", [BROKEN]), ("twice thrown", [BROKEN])]
        assert look("--planted", "--only", "THROWN", leaks=leaks) == 0
        assert told(capsys)[-1].startswith("1 of 1 ")
        assert look("--planted", "--only", "nothing", leaks=leaks) == 2

    def test_effort_and_seed_reach_the_checks(self, look, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Setting] = []
        monkeypatch.setattr(catalogue, "CHECKS", [Check("dice", lambda setting: seen.append(setting) or [SOUND])])
        for word in ("--quick", "--nightly"):
            assert command.main(["--processes", "1", "--seed", "3", word]) == 0
        assert [(setting.effort.value, setting.seed) for setting in seen] == [("quick", 3), ("nightly", 3)]
        assert seen[0].effort.trials(10) < seen[1].effort.trials(10)

    @pytest.mark.parametrize("wrong", [["--processes", "0"], ["--seed", "x"], ["--quick", "--nightly"], ["--what"]])
    def test_wrong_ones_are_refused(self, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as refused:
            command.main(wrong)
        assert refused.value.code == 2
        told = capsys.readouterr().err
        assert "usage: sfumato audit" in told
        assert "_count" not in told


class TestCatalogue:
    def test_names_are_told_apart(self) -> None:
        subjects = [check.subject for check in catalogue.CHECKS]
        names = [(leak.name, leak.subject) for leak in catalogue.LEAKS]
        assert len(set(subjects)) == len(subjects)
        assert len(set(names)) == len(names)

    def test_every_leak_the_audit_is_known_by_is_planted(self) -> None:
        asked = {
            "noise at 70 %", "sensitivity of uncentred data", "raw SSE split", "raw initial centres",
            "bounds from raw min/max", "empty-cluster skip", "maxH + 1 draws at epsilon/maxH", "release after failure",
            "a second report re-perturbed on retry", "slot derived from data", "modulo bias",
            "float Laplace low bits", "a draw interval ignored", "a charge after the draw",
        }  # fmt: skip
        assert asked <= {leak.name for leak in catalogue.LEAKS}
