"""Results: written once and readable forever."""

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from models.errors import JobNotFinished
from models.jobs import jobs
from models.tables.jobs import Job, Result
from tests.models.world import NOW, World


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


class TestResult:
    def test_document_is_read_as_it_was_stored(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        document = {"model": {"centroids": [[0.1, 1e-300], [2.0, -0.0]]}, "text": "ä", "none": None}

        world.write(jobs.add_result, queued.id, document, software_version="1.2.3", now=NOW)

        with world.database.reading() as session:
            found = jobs.get_result(session, queued.id)
            assert found.document == document
            assert (found.software_version, found.created_at) == ("1.2.3", NOW)

    def test_is_read_by_one_statement_with_its_names(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        document: dict[str, object] = {"model": {"names": []}}
        world.write(jobs.add_result, queued.id, document, software_version="1", now=NOW)
        asked: list[str] = []

        def hear(_c: object, _cursor: object, statement: str, *_: object) -> None:
            asked.append(statement)

        with world.database.reading() as session:
            job = session.get_one(Job, queued.id)
            event.listen(world.database.engine, "before_cursor_execute", hear)
            _, found = jobs.get_released(session, job)
            event.remove(world.database.engine, "before_cursor_execute", hear)
        assert found == {"model": {"names": [], "ids": []}}
        assert [statement.count("FROM results") for statement in asked] == [1, 0]  # the other is that of the ids

    def test_missing_result_raises_job_not_finished(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        with world.database.reading() as session:
            for job_id in (queued.id, "job_unknown"):
                with pytest.raises(JobNotFinished):
                    jobs.get_result(session, job_id)

    def test_second_result_is_rejected(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        world.write(jobs.add_result, queued.id, {"first": 1}, software_version="1", now=NOW)

        with pytest.raises(IntegrityError), world.database.transaction() as session:
            jobs.add_result(session, queued.id, {"second": 2}, software_version="1", now=NOW)

        assert world.read(jobs.get_result, queued.id).document == {"first": 1}

    def test_document_is_required(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        with pytest.raises(IntegrityError), world.database.transaction() as session:
            session.add(Result(job_id=queued.id, created_at=NOW, software_version="1"))
