"""Backup and restore by the commands of docs/operations.md during writes, and closed budgets after a restore."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner, Result

from models import maintenance
from models.collection import report_intake
from models.database.engine import Database
from models.database.schema import find_schema_problem
from models.database.types import Base
from models.encryption import Keyring
from models.errors import BudgetExhausted, NotFound, RecordsKeyMissing
from models.jobs import curator_answers, jobs, lifecycle
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset
from models.tables.jobs import JobState
from models.tables.ledger import LedgerEntry
from models.tables.rounds import CollectionTarget, Round
from service.cli.main import app
from sfumato.privacy.accounting import NANO
from tests.blocks import blocks_of
from tests.databases import on_sqlite
from tests.models.records import central, load, some, upload
from tests.models.world import DOCUMENT, World, charge, succeed
from tests.servers import postgres_installations

BATCH = 3  # reports the writer sends with each charge
N_BEFORE = 20  # charges before the backup begins
DELTA_ATTO = 10**12


@dataclass
class Filled:
    """A world with something of everything in it."""

    world: World
    local: Dataset
    central: Dataset
    finished: str  # a job with a result
    collecting: str  # a job that waits for devices
    held: Claim  # a job over records, in a worker's hands
    asked: Round  # a collection that the writer reports to

    @property
    def database(self) -> Database:
        return self.world.database


@pytest.fixture
def filled(world: World) -> Filled:
    local = world.new_dataset(epsilon_nano=1000 * NANO)
    collecting = world.submit(local, epsilon_nano=2 * NANO)
    world.receive(world.open_for(world.claimed()).id, 5)
    records = central(world, delta_atto=DELTA_ATTO)
    upload(world, records, some(500))
    finished = world.submit(records, epsilon_nano=NANO)
    ask(world, world.claimed(), finish=True)
    world.submit(records, epsilon_nano=3 * NANO)
    held = world.claimed()
    ask(world, held)
    asked = world.open_standalone(local, collect=CollectionTarget(10**6, 1, 3600))
    return Filled(world, local, records, finished.id, collecting.id, held, asked)


def ask(world: World, held: Claim, *, finish: bool = False) -> None:
    """A question of half a unit, and its answer."""
    with world.database.transaction() as session:
        curator_answers.charge(session, held, 0, ChargedQuery("count", NANO // 2, 4), now=world.now)
        curator_answers.store(session, held, 0, b"noisy")
        if finish:
            succeed(session, held)


@contextmanager
def writing(filled: Filled) -> Iterator[None]:
    """Store reports and a charge in each transaction, before, during and after the block."""
    stored, over = threading.Semaphore(0), threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        n = 0
        try:
            while not over.is_set():
                with filled.database.transaction() as session:
                    report_intake.receive(session, filled.asked.id, BATCH, b"r" * BATCH, now=filled.world.now)
                    charge(session, filled.local.id, "charge", 1, f"charge_{n}", None)
                stored.release()
                n += 1
        except BaseException as error:
            failed.append(error)

    def wait_for(n: int) -> None:
        assert all(stored.acquire(timeout=120) for _ in range(n)), failed

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(N_BEFORE)
        yield
        while stored.acquire(blocking=False):
            pass
        wait_for(2)  # the first of them may have begun before
    finally:
        over.set()
        writer.join()
    assert failed == []


def documented(words: str) -> str:
    """The one block of docs/operations.md that holds these words."""
    (found,) = [block.text for block in blocks_of("docs/operations.md") if words in block.text]
    return found


def shell(script: str, place: Path, **variables: str) -> None:
    ran = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, check=False, cwd=place, env=os.environ | variables
    )
    assert ran.returncode == 0, ran.stderr


@contextmanager
def copy_of(filled: Filled, place: Path) -> Iterator[Database]:
    """Restore a backup that was made during writes, by the commands of the page."""
    url = filled.database.engine.url.render_as_string(hide_password=False)
    through = _sqlite_copy if filled.database.is_sqlite else _postgres_copy
    with through(filled, place, url) as copy_url:
        opened = Database(copy_url)
        yield opened
        opened.close()


@contextmanager
def _sqlite_copy(filled: Filled, place: Path, url: str) -> Iterator[str]:
    here, there = place / "here", place / "there"
    here.mkdir()
    (here / ".sfumato").symlink_to(Path(str(make_url(url).database)).parent)
    (there / ".sfumato").mkdir(parents=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with writing(filled):
        shell(documented("VACUUM INTO"), here, PATH=path)
    backup = here / "backup.db"
    assert backup.stat().st_mode & 0o077 == 0
    for name in (
        "sfumato.db",
        "sfumato.db-wal",
        "sfumato.db-shm",
    ):  # files of the broken database, which must not return
        (there / ".sfumato" / name).write_bytes(b"broken" * 1000)
    shutil.copyfile(backup, there / "backup.db")
    shell(documented("cp backup.db"), there)
    yield f"sqlite:///{there / '.sfumato' / 'sfumato.db'}"


@contextmanager
def _postgres_copy(filled: Filled, place: Path, url: str) -> Iterator[str]:
    source = make_url(url)
    given = {"HOST": source.host, "PORT": source.port, "USER": source.username, "PASSWORD": source.password}
    variables = {f"PG{name}": str(value) for name, value in given.items() if value is not None}
    variables["PATH"] = f"{_postgres_programs(url)}:{os.environ['PATH']}"
    target = f"sfumato_restored_{secrets.token_hex(4)}"

    def named(script: str) -> str:
        names = {"sfumato": str(source.database), "sfumato_restored": target}
        return re.sub(r"\bsfumato(_restored)?\b", lambda found: names[found[0]], script)

    with writing(filled):
        shell(named(documented("pg_dump")), place, **variables)
    assert (place / "backup.dump").stat().st_mode & 0o077 == 0
    try:
        shell(named(documented("pg_restore")), place, **variables)
        yield source.set(database=target).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {target} WITH (FORCE)")


def _postgres_programs(url: str) -> Path:
    """Return the path of a pg_dump of the server's version or a newer one."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        version = connection.info.server_version // 10_000
    on_path = shutil.which("pg_dump")
    for place in [*([Path(on_path).parent] if on_path else []), *postgres_installations()]:
        if all((place / name).exists() for name in ("pg_dump", "pg_restore", "createdb")):
            said = subprocess.run([place / "pg_dump", "--version"], capture_output=True, text=True, check=True).stdout
            if int(re.findall(r"\d+", said)[0]) >= version:
                return place
    raise AssertionError(f"no pg_dump of version {version} or newer: install PostgreSQL's client programs")


def rows(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {
            name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in Base.metadata.tables.items()
        }


def n_charges(database: Database) -> int:
    """Return the number of rows of the writer."""
    with database.reading() as session:
        return session.execute(
            select(func.count()).select_from(LedgerEntry).where(LedgerEntry.reference.like("charge%"))
        ).scalar_one()


class TestABackupWhileSomebodyWrites:
    def test_restores_one_moment_of_everything(self, filled: Filled, tmp_path: Path) -> None:
        before = rows(filled.database)
        with copy_of(filled, tmp_path) as copy:
            n = n_charges(copy)
            assert N_BEFORE <= n < n_charges(filled.database)
            grown = {"ledger_entries": n, "report_batches": n}
            assert rows(copy) == {name: count + grown.get(name, 0) for name, count in before.items()}
            assert min(before[name] for name in ("record_segments", "record_keys", "query_answers", "results")) > 0
            restored_world = World(copy)
            assert restored_world.n_logged(filled.asked.id) == n * BATCH
            with copy.reading() as session:
                found = {each: ledger.verify(session, each) for each in ledger.dataset_ids(session)}
                heads = {each: ledger.head(session, each).hash for each in found}
                assert jobs.get_result(session, filled.finished).document == DOCUMENT
            assert set(found) == {filled.local.id, filled.central.id}
            assert all(each.ok and each.head_hash == heads[name] for name, each in found.items())
            assert found[filled.central.id].head_hash == self.head(filled.database, filled.central.id)

            assert load(restored_world, filled.central).points.tolist() == some(500).tolist()
            with pytest.raises(RecordsKeyMissing):
                load(restored_world, filled.central, Keyring((bytes(32),)))

    def head(self, database: Database, dataset_id: str) -> str:
        with database.reading() as session:
            return ledger.head(session, dataset_id).hash

    def test_restores_what_guards_the_ledger_and_can_be_gone_on_with(self, filled: Filled, tmp_path: Path) -> None:
        with copy_of(filled, tmp_path) as copy:
            assert find_schema_problem(copy) is None
            for change in ("UPDATE ledger_entries SET actor = 'x'", "DELETE FROM ledger_entries"):
                with pytest.raises(DBAPIError, match="append-only"), copy.transaction() as session:
                    session.execute(text(change))
            n = n_charges(copy)
            with copy.transaction() as session:
                report_intake.receive(session, filled.asked.id, 1, b"r", now=filled.world.now)
                charge(session, filled.local.id, "charge", 1, "after", None)
                assert ledger.verify(session, filled.local.id).ok
            assert (n_charges(copy), rows(copy)["report_batches"]) == (n, n + 2)


class TestClosingBudgetsAfterARestore:
    def close(self, filled: Filled, within: Dataset) -> Amounts:
        return filled.world.write(maintenance.close_budget, within.id, now=filled.world.now)

    def test_leaves_nothing_to_spend_and_a_ledger_that_holds(self, filled: Filled) -> None:
        for within in (filled.local, filled.central):
            before = filled.world.balance(within.id)
            charged = self.close(filled, within)

            after = filled.world.balance(within.id)
            assert charged == Amounts(before.granted_nano - before.charged_nano, before.granted_delta_atto)
            assert charged.epsilon_nano > 0
            assert after[:6] == (before[0], 0, before[0], before[3], 0, before[3])
            assert filled.world.read(ledger.verify, within.id).ok
            with pytest.raises(BudgetExhausted):
                filled.world.submit(within, epsilon_nano=1000)

    def test_ends_jobs_so_that_no_question_is_asked_again(self, filled: Filled) -> None:
        for within in (filled.local, filled.central):
            self.close(filled, within)

        assert filled.world.job(filled.collecting).state == JobState.CANCELED
        assert filled.world.job(filled.held.job_id).cancel_requested
        with pytest.raises(BudgetExhausted), filled.database.transaction() as session:
            curator_answers.charge(session, filled.held, 1, ChargedQuery("sums", 1, 4), now=filled.world.now)
        filled.world.write(lifecycle.fail, filled.held, JobState.CANCELED, code="x", detail="x", now=filled.world.now)
        assert filled.world.balance(filled.central.id).free.epsilon_nano == 0

    def test_again_posts_nothing_and_a_grant_afterwards_can_be_spent(self, filled: Filled) -> None:
        self.close(filled, filled.central)
        assert self.close(filled, filled.central) == Amounts()

        filled.world.write(charge, filled.central.id, "grant", NANO, "known", None)
        filled.world.submit(filled.central, epsilon_nano=NANO)
        assert filled.world.balance(filled.central.id).free.epsilon_nano == 0

    def test_of_no_dataset_is_refused(self, filled: Filled) -> None:
        with pytest.raises(NotFound), filled.database.transaction() as session:
            maintenance.close_budget(session, "ds_none", now=filled.world.now)


@on_sqlite
class TestCloseAfterRestore:
    @pytest.fixture(autouse=True)
    def _at_this_database(self, filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
        url = filled.database.engine.url.render_as_string(hide_password=False)
        monkeypatch.setenv("SFUMATO_DATABASE_URL", url)

    def test_closes_the_given_budgets(self, filled: Filled) -> None:
        assert run(filled.central.id).output == f"{filled.central.id}: charged epsilon 9, delta 1e-6\n"
        assert filled.world.balance(filled.local.id).free.epsilon_nano > 0

        assert run("--all").output.count(": charged epsilon ") == 2
        assert filled.world.balance(filled.local.id).free.epsilon_nano == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "either dataset ids"),
            (["ds_x", "--all"], "either dataset ids"),
            (["ds_x"], "ds_x: no such ledger"),
        ],
    )
    def test_closes_no_budget_by_accident(self, filled: Filled, arguments: list[str], message: str) -> None:
        result = run(*arguments)
        assert result.exit_code != 0
        assert message in result.output
        assert filled.world.balance(filled.central.id).free.epsilon_nano > 0


def run(*arguments: str) -> Result:
    """Run `sfumato ledger close-after-restore`."""
    return CliRunner().invoke(app, ["ledger", "close-after-restore", *arguments])
