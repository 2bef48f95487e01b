"""`sfumato records`: files sent once, keys made and rotated while uploads go on."""

import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from models import record, record_key, sealing
from models.dataset import Dataset, Trust
from models.db import Database
from models.sealing import Keyring
from models.settings import Settings
from service import cli, embedded, record_commands
from tests.models.world import World
from tests.service.api import Api
from tests.service.test_records import ROWS, arrow, counted, npy

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `sfumato records ...` in this process."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))

    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli.app, ["records", *arguments], env={"TERM": "dumb", "COLUMNS": "200"})
        assert result.exit_code == status, result.output
        return result

    return invoke


@pytest.fixture
def reaching(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A gateway the command line finds."""
    from sfumato.client import Client

    class Connected(Client):
        def __init__(self, url: str, key: str, **options: object) -> None:
            super().__init__(url, key, transport=api.http._transport, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(record_commands, "Client", Connected)
    monkeypatch.setenv("SFUMATO_URL", "http://gateway")
    monkeypatch.setenv("SFUMATO_KEY", api.secret)
    return api


class TestUploading:
    @pytest.mark.parametrize(
        ("name", "body"),
        [
            ("a.csv", b"y,x\n" + b"".join(b"%r,%r\n" % (y, x) for x, y in ROWS)),
            ("a.NPY", npy(ROWS)),
            ("a.npy", npy(np.asfortranarray(ROWS, dtype=np.float32))),
            ("a.arrow", arrow(x=pa.array([x for x, _ in ROWS]), y=pa.array([y for _, y in ROWS]))),
        ],
    )
    def test_a_file_again_changes_nothing(
        self, run: Run, reaching: Api, tmp_path: Path, name: str, body: bytes
    ) -> None:
        made = reaching.dataset(trust="central")
        (tmp_path / name).write_bytes(body)
        for _ in range(2):
            said = run("upload", made["id"], str(tmp_path / name)).output
            assert "3 records are stored, 0 of them clipped" in said
        assert counted(reaching, made["id"])["n_uploads"] == 1
        other = reaching.dataset(trust="central")
        run("upload", other["id"], str(tmp_path / name))
        assert counted(reaching, other["id"])["n_records"] == 3

    def test_a_long_file_goes_in_parts_and_on_where_it_stopped(
        self, run: Run, reaching: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 100)
        made = reaching.dataset(trust="central")
        source = tmp_path / "long.csv"
        good = "".join(f"0.{row:03},0.5\n" for row in range(100))
        source.write_text("x,y\n" + good + "47110815,oops\n")
        said = run("upload", made["id"], str(source), status=1).output
        assert "y is not a finite number" in said
        assert "47110815" not in said
        n_before = counted(reaching, made["id"])["n_records"]
        assert 0 < n_before < 100
        assert "record 100: y" in said
        assert f"{n_before} records before it are stored" in said
        source.write_text("x,y\n" + good + "0.5,0.5\n")
        for _ in range(2):
            assert "101 records are stored" in run("upload", made["id"], str(source)).output
            assert counted(reaching, made["id"])["n_records"] == 101
        reaching.request("DELETE", f"/datasets/{made['id']}/records")
        run("upload", made["id"], str(source))
        assert counted(reaching, made["id"])["n_records"] == 101

    @pytest.mark.parametrize(
        ("name", "body", "says"),
        [
            ("a.txt", b"x", "files .csv, .npy or .arrow"),
            ("a.npy", b"x", "no NPY file"),
            ("a.npy", npy(np.array([["4711"]], dtype=object)), "no NPY file"),
            ("a.npy", npy([1.0]), "shape (n, n_features)"),
            ("a.csv", b"", "header row is missing"),
            ("a.csv", b"x,y\n", "no records"),
        ],
    )
    def test_what_is_no_such_file_is_refused(
        self, run: Run, reaching: Api, tmp_path: Path, name: str, body: bytes, says: str
    ) -> None:
        made = reaching.dataset(trust="central")
        (tmp_path / name).write_bytes(body)
        assert says in run("upload", made["id"], str(tmp_path / name), status=1).output

    def test_without_a_service_says_what_to_set(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SFUMATO_URL", raising=False)
        (tmp_path / "a.csv").write_text("x\n1\n")
        assert "SFUMATO_URL" in run("upload", "ds_1", str(tmp_path / "a.csv"), status=1).output
        run("upload", "ds_1", str(tmp_path / "missing.csv"), status=2)


class TestKeys:
    def test_are_made_for_one_machine_once(self, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path)
        assert embedded.records_key(settings)
        path = tmp_path / sealing.KEY_FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_text()
        assert sealing.keyring_of(settings).keys == sealing.read_keys(before)
        assert not embedded.records_key(settings)
        assert path.read_text() == before

    def test_are_not_made_where_the_setting_has_one(self, tmp_path: Path) -> None:
        key = SecretStr(sealing.write_key(sealing.new_secret()))
        assert not embedded.records_key(Settings(home=tmp_path, records_key=key))
        assert not (tmp_path / sealing.KEY_FILE).exists()

    def test_are_printed_fresh(self, run: Run) -> None:
        first, second = (run("new-key").output.strip() for _ in range(2))
        assert first != second
        assert len(sealing.read_keys(first)[0]) == sealing.KEY_BYTES


class TestRotating:
    OLD, NEW = bytes(32), bytes(range(32))

    def filled(self, world: World, ring: Keyring, n_datasets: int) -> list[Dataset]:
        made = [world.new_dataset(trust=Trust.CENTRAL) for _ in range(n_datasets)]
        for each in made:
            self.upload(world, each, ring)
        return made

    def upload(self, world: World, within: Dataset, ring: Keyring) -> None:
        with world.database.transaction() as session:
            opened = record.Upload(record_key.open_or_make(session, within.id, ring), 2)
            opened.add(np.full((2, 2), 5, dtype=np.int32), None, 0)
            record.append(session, opened, max_records=10**6)

    def readable(self, world: World, within: Dataset, ring: Keyring) -> int:
        with world.database.reading() as session:
            return len(record.load(session, within.id, ring).points)

    @pytest.fixture
    def world(self, database_url: str) -> Iterator[World]:
        """A database of the test's own."""
        opened = Database(database_url)
        yield World(opened)
        opened.close()

    def test_goes_on_where_it_was_stopped(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        both = Keyring((self.NEW, self.OLD))
        made = self.filled(world, Keyring((self.OLD,)), 5)
        monkeypatch.setattr(record_commands, "KEYS_AT_ONCE", 2)

        class Stopped(Exception):
            pass

        def stop(n_done: int) -> None:
            if n_done == 2:
                raise Stopped

        with pytest.raises(Stopped):
            record_commands.rotate(world.database, both, stop)
        told: list[int] = []
        assert record_commands.rotate(world.database, both, told.append) == (3, [])

        assert told == [2, 3]
        assert [self.readable(world, each, Keyring((self.NEW,))) for each in made] == [2] * 5

    def test_leaves_what_it_cannot_open_as_it_was_and_does_the_rest(self, world: World) -> None:
        lost = Keyring((bytes([7]) * 32,))
        first, foreign, last = (
            self.filled(world, ring, 1)[0] for ring in (Keyring((self.OLD,)), lost, Keyring((self.OLD,)))
        )
        both = Keyring((self.NEW, self.OLD))
        n_done, left = record_commands.rotate(world.database, both, lambda done: None)
        assert (n_done, len(left)) == (2, 1)
        assert left[0].startswith(f"{foreign.id}: SFUMATO_RECORDS_KEY lacks the key {lost.newest_id}")
        assert [self.readable(world, each, Keyring((self.NEW,))) for each in (first, last)] == [2, 2]
        assert self.readable(world, foreign, lost) == 2

    def test_goes_on_while_records_come_in(self, world: World) -> None:
        both, swapped = Keyring((self.NEW, self.OLD)), Keyring((self.OLD, self.NEW))
        made = self.filled(world, both, 4)
        begun, enough = threading.Event(), threading.Event()
        failed: list[BaseException] = []
        n_uploads = 0

        def keep_uploading() -> None:
            nonlocal n_uploads
            try:
                while not enough.is_set():
                    for each in made:
                        self.upload(world, each, both)
                    n_uploads += 1
                    begun.set()
            except BaseException as error:
                failed.append(error)

        uploading = threading.Thread(target=keep_uploading)
        uploading.start()
        assert begun.wait(180)
        for turn in range(5):
            record_commands.rotate(world.database, (swapped, both)[turn % 2], lambda done: None)
        enough.set()
        uploading.join()
        record_commands.rotate(world.database, both, lambda done: None)

        assert failed == []
        assert [self.readable(world, each, Keyring((self.NEW,))) for each in made] == [2 + 2 * n_uploads] * 4

    def test_by_the_command_says_what_it_did_and_what_it_could_not(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "no database" in run("rotate-keys", status=2).output
        CliRunner().invoke(cli.app, ["migrate"])
        assert "set SFUMATO_RECORDS_KEY" in run("rotate-keys", status=2).output
        opened = Database(f"sqlite:///{tmp_path / 'home' / 'sfumato.db'}")
        world = World(opened)
        (made,) = self.filled(world, Keyring((self.OLD,)), 1)
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", sealing.write_key(self.NEW))
        said = run("rotate-keys", status=1).output
        assert f"{made.id}: SFUMATO_RECORDS_KEY lacks the key {sealing.key_id(self.OLD)}" in said
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", f"{sealing.write_key(self.NEW)},{sealing.write_key(self.OLD)}")
        assert "1 datasets and webhook secrets have the newest key now" in run("rotate-keys").output
        assert "0 datasets and webhook secrets have the newest key now" in run("rotate-keys").output
        assert self.readable(world, made, Keyring((self.NEW,))) == 2
        opened.close()
