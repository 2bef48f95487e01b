"""A file store keeps to one file under all its names, after a change of folder and through links."""

import os
from pathlib import Path

import pytest

from sfumato.device.outcomes import Outcome
from sfumato.device.store import FileStore
from sfumato.errors import StoreUnusable
from tests.sfumato.scripted import RECORD, ScriptedService, open_round


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(open_round())


def test_a_change_of_folder_keeps_the_memory(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    device = service.device(store="device.json")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    outcomes = [device.report(RECORD) for _ in range(2)]
    assert [each.outcome for each in outcomes] == [Outcome.SENT, Outcome.ALREADY_ANSWERED]
    assert {each.store for each in outcomes} == {str(tmp_path / "device.json")}
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_into_a_volume_stays_and_its_target_is_written(
    service: ScriptedService, tmp_path: Path, exists: bool
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    if exists:
        with FileStore(volume / "device.json").changing("ds_2") as memory:
            memory.draws["rnd_2"] = 7
    outcomes = []
    for name in ("first", "second"):  # two containers with the same volume
        (tmp_path / name).mkdir()
        (tmp_path / name / "device.json").symlink_to(volume / "device.json")
        outcomes.append(service.device(store=tmp_path / name / "device.json").report(RECORD).outcome)
        assert (tmp_path / name / "device.json").is_symlink()
    assert outcomes == [Outcome.SENT, Outcome.ALREADY_ANSWERED]
    assert FileStore(volume / "device.json").read("ds_2").draws == ({"rnd_2": 7} if exists else {})


def test_a_linked_folder_is_followed(service: ScriptedService, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to("home")
    assert FileStore(tmp_path / "link" / "device.json").path == tmp_path / "home" / "device.json"


def test_a_second_hard_link_is_refused_before_a_report_is_sent(service: ScriptedService, tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    with FileStore(path).changing("ds_2") as memory:
        memory.draws["rnd_2"] = 7
    os.link(path, tmp_path / "other.json")
    with pytest.raises(StoreUnusable, match="several hard links"):
        service.device(store=path).report(RECORD)
    assert service.sent == []


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreUnusable, match="check its links"):
        FileStore(tmp_path / "a")
