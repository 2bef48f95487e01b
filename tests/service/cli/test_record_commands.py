"""`sfumato records`: uploads that are stored once, and keys that are created and rotated during uploads."""

import stat
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
from pydantic import SecretStr
from sqlalchemy import text

from models import encryption
from models.database.engine import Database
from models.database.schema import migrate
from models.encryption import Keyring
from models.records import record_keys, records
from models.tables.datasets import Dataset, Trust
from models.tables.webhooks import WebhookSecret
from runtime import settings as settings_module
from runtime.settings import Settings
from service.cli import records as record_commands
from service.cli import serve
from tests.models.world import World
from tests.service.api import SQLITE_ONLY, Api
from tests.service.commands import Run, connect_commands, run_command
from tests.service.ingestion.test_records import ROWS, arrow, arrow_file, count, npy


@pytest.fixture
def run(tmp_path: Path, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `sfumato records ...` in this process."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    return partial(run_command, "records")


@pytest.fixture
def connected(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return a gateway that the commands use."""
    connect_commands(api, monkeypatch)
    return api


@SQLITE_ONLY
class TestUploading:
    @pytest.mark.parametrize(
        ("name", "body"),
        [
            ("a.csv", b"y,x\n" + b"".join(b"%r,%r\n" % (y, x) for x, y in ROWS)),
            ("a.NPY", npy(ROWS)),
            ("a.npy", npy(np.asfortranarray(ROWS, dtype=np.float32))),
            ("a.arrows", arrow(x=pa.array([x for x, _ in ROWS]), y=pa.array([y for _, y in ROWS]))),
            ("a.arrow", arrow_file(x=[x for x, _ in ROWS], y=[y for _, y in ROWS])),
            ("a.feather", arrow_file(x=[x for x, _ in ROWS], y=[y for _, y in ROWS])),
        ],
    )
    def test_a_repeated_upload_changes_nothing(
        self, run: Run, connected: Api, tmp_path: Path, name: str, body: bytes
    ) -> None:
        first, other = (connected.dataset(trust="central")["id"] for _ in range(2))
        (tmp_path / name).write_bytes(body)
        for dataset_id in (first, first, other):
            output = run("upload", dataset_id, str(tmp_path / name)).output
            assert "3 records are stored, 0 of them clipped" in output
            assert "a useful job needs at least 4 more records" in output
        assert [count(connected, dataset_id)["n_uploads"] for dataset_id in (first, other)] == [1, 1]

    def test_a_long_file_is_sent_in_parts_and_stored_completely_or_not_at_all(
        self, run: Run, connected: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 100)
        dataset_id, source = connected.dataset(trust="central")["id"], tmp_path / "long.csv"
        good = "".join(f"0.{row:03},0.5\n" for row in range(100))
        source.write_text("x,y\n" + good + "47110815,oops\n")
        output = run("upload", dataset_id, str(source), status=1).output
        assert count(connected, dataset_id)["n_records"] == 0
        assert "record 101: y must be a finite number" in output
        assert "nothing of this request was stored" in output
        assert "47110815" not in output
        source.write_text("x,y\n" + good + "0.5,0.5\n")
        for _ in range(2):
            output = run("upload", dataset_id, str(source)).output
            assert "101 records are stored" in output
            assert "more records" not in output
            assert count(connected, dataset_id)["n_records"] == 101
        connected.delete(f"/datasets/{dataset_id}/records?all=true")
        run("upload", dataset_id, str(source))
        assert count(connected, dataset_id)["n_records"] == 101

    def test_equal_parts_of_a_file_are_all_stored(
        self, run: Run, connected: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 24)
        dataset_id, source = connected.dataset(trust="central")["id"], tmp_path / "equal.csv"
        source.write_text("x,y\n" + "0.25,0.5\n" * 12)
        for _ in range(2):  # the repetition stores nothing
            assert "12 records are stored" in run("upload", dataset_id, str(source)).output
        counts = count(connected, dataset_id)
        assert (counts["n_records"], counts["n_uploads"]) == (12, 1)

    @pytest.mark.parametrize("start", ["\n", "\r\n\n", "\ufeff\n", "\ufeff"])
    def test_empty_lines_before_the_header_belong_to_every_part(
        self, run: Run, connected: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
    ) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 24)
        dataset_id, source = connected.dataset(trust="central")["id"], tmp_path / "blank.csv"
        source.write_bytes((start + "x,y\n" + "0.25,0.5\n" * 12).encode())
        assert "12 records are stored" in run("upload", dataset_id, str(source)).output
        counts = count(connected, dataset_id)
        assert (counts["n_records"], counts["n_uploads"]) == (12, 1)

    def test_stored_records_are_appended_again_only_on_request(self, run: Run, connected: Api, tmp_path: Path) -> None:
        dataset_id, source = connected.dataset(trust="central")["id"], tmp_path / "a.npy"
        source.write_bytes(npy(ROWS))
        run("upload", dataset_id, str(source))
        other = source.rename(tmp_path / "b.csv")
        other.write_bytes(b"x,y\n" + b"".join(b"%r,%r\n" % (x, y) for x, y in ROWS))
        assert "already has an upload of the same 3 records" in run("upload", dataset_id, str(other), status=1).output
        for _ in range(2):  # the repetition stores nothing
            assert "3 records are stored" in run("upload", dataset_id, str(other), "--allow-duplicates").output
        assert count(connected, dataset_id)["n_records"] == 6

    def test_another_file_format_is_refused(self, run: Run, connected: Api, tmp_path: Path) -> None:
        dataset_id = connected.dataset(trust="central")["id"]
        for name, body, message in (
            ("a.txt", b"x", ".csv, .npy, .arrow, .arrows or"),
            ("a.npy", b"x", "not an NPY file"),
            ("a.npy", b"", "not an NPY file"),
            ("a.npy", npy(np.array([["4711"]], dtype=object)), "not an NPY file"),
            ("a.npy", npy([1.0]), "shape (n, n_features)"),
            ("a.csv", b"", "header row is missing"),
            ("a.csv", b"x,y\n", "no records"),
        ):
            (tmp_path / name).write_bytes(body)
            assert message in run("upload", dataset_id, str(tmp_path / name), status=1).output


def test_an_upload_without_a_service_names_the_setting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFUMATO_URL", raising=False)
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert "SFUMATO_URL" in run("upload", "ds_1", str(tmp_path / "a.csv"), status=1).output
    run("upload", "ds_1", str(tmp_path / "missing.csv"), status=2)


class TestKeys:
    def test_are_created_once_per_machine_unless_the_setting_has_one(self, tmp_path: Path) -> None:
        key = SecretStr(encryption.encode_key(encryption.new_secret()))
        path = tmp_path / encryption.KEY_FILE
        settings = Settings(home=tmp_path)
        migrate(settings.resolved_database_url)
        database = Database(settings.resolved_database_url)
        assert not serve.create_records_key(Settings(home=tmp_path, records_key=key), database)
        assert not path.exists()
        assert serve.create_records_key(settings, database)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_text()
        assert encryption.load_keyring(settings).keys == settings_module.read_keys(before)
        assert not serve.create_records_key(settings, database)
        assert path.read_text() == before
        database.close()

    def test_are_not_replaced_in_silence_if_the_database_needs_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = Settings(home=tmp_path)
        migrate(settings.resolved_database_url)
        database = Database(settings.resolved_database_url)
        with database.transaction() as session:
            session.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('ten_1', 'a', 1)"))
            session.execute(
                text(
                    "INSERT INTO webhooks (id, tenant_id, url, event_types, description, enabled, created_at) "
                    "VALUES ('whk_1', 'ten_1', 'https://a.example', '[]', '', 1, 1)"
                )
            )
            secret = WebhookSecret(id="whs_1", webhook_id="whk_1", sealed_by="0123", sealed=b"x", expires_at=None)
            session.add(secret)
        with pytest.raises(typer.Exit):
            serve.create_records_key(settings, database)
        database.close()
        assert not (tmp_path / encryption.KEY_FILE).exists()
        assert "key 0123 encrypted: copy the file back" in capsys.readouterr().err

    def test_differ_each_time_they_are_printed(self, run: Run) -> None:
        first, second = (run("new-key").output.strip() for _ in range(2))
        assert first != second
        assert len(settings_module.read_keys(first)[0]) == settings_module.KEY_BYTES


class TestRotating:
    OLD, NEW = bytes(32), bytes(range(32))

    def filled(self, world: World, ring: Keyring, n_datasets: int) -> list[Dataset]:
        made = [world.new_dataset(trust=Trust.CENTRAL) for _ in range(n_datasets)]
        for each in made:
            self.upload(world, each, ring)
        return made

    def upload(self, world: World, within: Dataset, ring: Keyring) -> None:
        with world.database.transaction() as session:
            opened = records.Upload(record_keys.open_or_create(session, within.id, ring), 2)
            opened.add(np.full((2, 2), 5, dtype=np.int32), None, 0)
            records.append(session, opened, max_records=10**6, allow_duplicates=True)

    def readable(self, world: World, within: Dataset, ring: Keyring) -> int:
        with world.database.reading() as session:
            return len(records.load(session, within.id, ring).points)

    @pytest.fixture
    def world(self, database_url: str) -> Iterator[World]:
        """Return helpers for a database that only this test uses."""
        opened = Database(database_url)
        yield World(opened)
        opened.close()

    def test_resumes_after_an_interruption(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        both = Keyring((self.NEW, self.OLD))
        made = self.filled(world, Keyring((self.OLD,)), 5)
        monkeypatch.setattr(record_commands, "KEYS_PER_TRANSACTION", 2)

        class Stopped(Exception):
            pass

        def stop(n_done: int) -> None:
            if n_done == 2:
                raise Stopped

        with pytest.raises(Stopped):
            record_commands.rotate(world.database, both, stop)
        progress: list[int] = []
        assert record_commands.rotate(world.database, both, progress.append) == (3, [])

        assert progress == [2, 3]
        assert [self.readable(world, each, Keyring((self.NEW,))) for each in made] == [2] * 5

    def test_skips_keys_that_it_cannot_decrypt(self, world: World) -> None:
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

    def test_works_during_uploads(self, world: World) -> None:
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

    def test_by_the_command_prints_the_number_of_keys_and_the_failures(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "no database" in run("rotate-keys", status=2).output
        run_command("migrate")
        assert "set SFUMATO_RECORDS_KEY" in run("rotate-keys", status=2).output
        opened = Database(f"sqlite:///{tmp_path / 'home' / 'sfumato.db'}")
        world = World(opened)
        (made,) = self.filled(world, Keyring((self.OLD,)), 1)
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", encryption.encode_key(self.NEW))
        output = run("rotate-keys", status=1).output
        assert f"{made.id}: SFUMATO_RECORDS_KEY lacks the key {encryption.key_id(self.OLD)}" in output
        monkeypatch.setenv(
            "SFUMATO_RECORDS_KEY", f"{encryption.encode_key(self.NEW)},{encryption.encode_key(self.OLD)}"
        )
        assert "1 data keys and webhook secrets are now encrypted with the newest key" in run("rotate-keys").output
        assert "0 data keys and webhook secrets are now encrypted with the newest key" in run("rotate-keys").output
        assert self.readable(world, made, Keyring((self.NEW,))) == 2
        opened.close()
