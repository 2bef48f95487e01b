"""Results: written once, read for ever."""

import pytest
from sqlalchemy.exc import IntegrityError

from models import result
from models.errors import JobNotFinished
from tests.models.world import NOW, World


class TestAResult:
    def test_reads_as_it_was_written(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        document = {"model": {"centroids": [[0.1, 1e-300], [2.0, -0.0]]}, "text": "ä", "none": None}

        with world.database.transaction() as session:
            result.add(session, queued.id, document, software_version="1.2.3", now=NOW)

        with world.database.reading() as session:
            found = result.get(session, queued.id)
            assert found.document == document
            assert (found.software_version, found.created_at) == ("1.2.3", NOW)

    def test_that_is_not_there_is_a_job_that_has_not_finished(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        with world.database.reading() as session:
            for job_id in (queued.id, "job_unknown"):
                with pytest.raises(JobNotFinished):
                    result.get(session, job_id)

    def test_cannot_be_written_again(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        with world.database.transaction() as session:
            result.add(session, queued.id, {"first": 1}, software_version="1", now=NOW)

        with pytest.raises(IntegrityError), world.database.transaction() as session:
            result.add(session, queued.id, {"second": 2}, software_version="1", now=NOW)

        with world.database.reading() as session:
            assert result.get(session, queued.id).document == {"first": 1}

    def test_needs_its_document(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        with pytest.raises(IntegrityError), world.database.transaction() as session:
            session.add(result.Result(job_id=queued.id, created_at=NOW, software_version="1"))
