"""Central jobs, on both databases: charged before they look, told once, run to one result whatever happens."""

from collections.abc import Callable

import numpy as np
import pytest

from clustering.central.cells import GridCells
from clustering.curator import Curator
from models import job as jobs
from models.answer import Answer
from models.db import Database
from models.errors import StaleFence
from models.job import Claim, JobState
from models.ledger import Balance
from models.sealing import Keyring
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidSpec
from tests.texts import numbers_in
from tests.workers.archive import ALGORITHM, GRANTED, KEYRING, N_RECORDS, Archive
from tests.workers.driving import LEASE, must_claim
from tests.workers.toy_central import PRICES, Crash, ToyCentral
from workers.central import JobJournal, pack, unpack
from workers.runner import Outcome, run

TOY = ToyCentral()
MOMENTS = [("before", 0), ("during", 0), ("before", 1), ("during", 1), ("before", 2), ("during", 2), ("after", 0)]


@pytest.fixture
def archive(database: Database) -> Archive:
    """A central dataset with records."""
    return Archive.create(database)


def work(archive: Archive, held: Claim | None = None, *, run_central: Callable = TOY, **other: object) -> Outcome:
    """One claim to its end."""
    held = held or must_claim(archive.database)
    return run(archive.database, held, run_central=run_central, **{"keyring": lambda: KEYRING, **other})


def crash(archive: Archive, moment: tuple[str, int]) -> Claim:
    """A worker ends in the middle; its lease lapses, and this is the next claim."""
    with pytest.raises(Crash):
        work(archive, run_central=ToyCentral(at=moment))
    return must_claim(archive.database, later=2 * LEASE)


def told(stored: list[Answer]) -> list[list[int] | None]:
    return [None if each.packed is None else unpack(each.packed).tolist() for each in stored]


class TestAJob:
    def test_posts_each_question_and_releases_the_rest(self, archive: Archive) -> None:
        job_id = archive.submit()
        assert archive.balance() == Balance(GRANTED, NANO, 0)
        assert work(archive) is Outcome.SUCCEEDED
        document = archive.document(job_id)
        assert [asked["epsilon_nano"] for asked in document["odometer"]] == list(PRICES)
        assert [asked["what"] for asked in document["odometer"]] == ["counts"] * 3
        answers = document["model"]["diagnostics"]["answers"]
        assert [asked["n_values"] for asked in document["odometer"]] == [len(answer) for answer in answers]
        assert (document["rounds"], document["algorithm"]) == ([], ALGORITHM)
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES))
        archive.check(job_id)

    def test_sees_the_records_and_how_many_a_user_may_have(self, database: Database) -> None:
        archive = Archive.create(database, n_records=50, max_per_user=7)
        archive.submit()
        seen: list[tuple[int, int]] = []

        def spy(params, features, curator: Curator) -> ClusterModel:
            seen.append((curator.n_features, curator.max_per_user))
            count = curator.count(NANO)
            assert abs(count - 7) < 7 * 40  # e^-40
            return ToyCentral(prices=())(params, features, curator)

        assert work(archive, run_central=spy) is Outcome.SUCCEEDED
        assert seen == [(2, 7)]

    def test_runs_over_no_records_as_over_any(self, database: Database) -> None:
        archive = Archive.create(database, n_records=0)
        job_id = archive.submit()
        assert work(archive) is Outcome.SUCCEEDED
        archive.check(job_id)

    def test_draws_noise_of_its_own_each_time(self, archive: Archive) -> None:
        answers = []
        for _ in range(2):
            job_id = archive.submit()
            assert work(archive) is Outcome.SUCCEEDED
            answers.append(archive.document(job_id)["model"]["diagnostics"]["answers"])
        assert answers[0] != answers[1]

    def test_shows_the_number_of_records_nowhere(self, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
        job_id = archive.submit()
        assert work(archive, run_central=ToyCentral(prices=())) is Outcome.SUCCEEDED
        for told_of_it in (str(vars(archive.job(job_id))), str(archive.document(job_id)), *capsys.readouterr()):
            assert N_RECORDS not in numbers_in(told_of_it)

    def test_of_a_local_algorithm_fails_and_releases_all(self, archive: Archive) -> None:
        job_id = archive.submit(algorithm={"type": "uniform_grid", "epsilon": 1.0})
        assert work(archive) is Outcome.FAILED
        assert archive.job(job_id).error_code == "validation_failed"
        assert archive.balance() == Balance(GRANTED, 0, 0)

    def test_without_the_key_of_its_records_fails_and_releases_all(self, archive: Archive) -> None:
        job_id = archive.submit()
        assert work(archive, keyring=lambda: Keyring((bytes(32),))) is Outcome.FAILED
        assert archive.job(job_id).error_code == "unavailable"
        assert archive.balance() == Balance(GRANTED, 0, 0)


class TestACrash:
    @pytest.mark.parametrize("moment", MOMENTS, ids=str)
    def test_anywhere_costs_nothing_more_and_changes_no_answer_that_was_told(
        self, archive: Archive, moment: tuple[str, int]
    ) -> None:
        job_id = archive.submit()
        held = crash(archive, moment)
        stored = archive.answers(job_id)
        charged = {"before": moment[1], "during": moment[1] + 1, "after": 3}[moment[0]]
        assert [each.epsilon_nano for each in stored] == list(PRICES[:charged])
        assert archive.balance().posted_nano == sum(PRICES[:charged])
        kept = told(stored)
        assert kept.count(None) == (moment[0] == "during")

        assert work(archive, held) is Outcome.SUCCEEDED
        answers = archive.document(job_id)["model"]["diagnostics"]["answers"]
        n_kept = charged - kept.count(None)
        assert answers[:n_kept] == kept[:n_kept]
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES))
        archive.check(job_id)

    def test_after_crash_comes_to_one_result(self, archive: Archive) -> None:
        job_id = archive.submit()
        held = None
        for moment in MOMENTS:
            with pytest.raises(Crash):
                work(archive, held, run_central=ToyCentral(at=moment))
            held = must_claim(archive.database, later=2 * LEASE)
            with archive.database.transaction() as session:
                jobs.hand_back(session, held, is_attempt=False, now=archive.database.clock())
            held = must_claim(archive.database)
        before = told(archive.answers(job_id))
        assert work(archive, held) is Outcome.SUCCEEDED
        assert archive.document(job_id)["model"]["diagnostics"]["answers"] == before
        archive.check(job_id)

    def test_of_a_job_that_asks_something_else_afterwards_ends_it_without_another_charge(
        self, archive: Archive
    ) -> None:
        job_id = archive.submit()
        held = crash(archive, ("before", 2))
        assert work(archive, held, run_central=ToyCentral(prices=(NANO // 3,))) is Outcome.FAILED
        assert (archive.job(job_id).state, archive.job(job_id).error_code) == (JobState.FAILED, "conflict")
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES[:2]))
        assert archive.answers(job_id) == []


class TestAStaleClaim:
    def overtake(self, archive: Archive) -> None:
        must_claim(archive.database, later=2 * LEASE)

    @pytest.mark.parametrize(("moment", "n_charged", "n_told"), [(("before", 1), 1, 1), (("during", 1), 2, 1)])
    def test_charges_nothing_and_keeps_nothing(
        self, archive: Archive, moment: tuple[str, int], n_charged: int, n_told: int
    ) -> None:
        job_id = archive.submit()
        overtaken = ToyCentral(at=moment, stop=lambda: self.overtake(archive))
        assert work(archive, run_central=overtaken) is Outcome.STALE
        stored = archive.answers(job_id)
        assert (len(stored), sum(each.packed is not None for each in stored)) == (n_charged, n_told)
        assert archive.balance().posted_nano == sum(PRICES[:n_charged])
        assert archive.job(job_id).state == JobState.RUNNING

    def test_publishes_nothing(self, archive: Archive) -> None:
        job_id = archive.submit()
        overtaken = ToyCentral(at=("after", 0), stop=lambda: self.overtake(archive))
        assert work(archive, run_central=overtaken) is Outcome.STALE
        assert archive.job(job_id).state == JobState.RUNNING
        assert work(archive, must_claim(archive.database, later=4 * LEASE)) is Outcome.SUCCEEDED
        archive.check(job_id)

    def test_is_told_so_by_its_journal(self, archive: Archive) -> None:
        archive.submit()
        stale = must_claim(archive.database)
        self.overtake(archive)
        curator_s = JobJournal(archive.database, stale)
        with pytest.raises(StaleFence):
            curator_s.keep(0, np.zeros(1, dtype=np.int64))


class TestCancelling:
    @pytest.mark.parametrize(("moment", "posted"), [(("before", 0), ()), (("before", 1), PRICES[:1])])
    def test_releases_what_was_not_asked(
        self, archive: Archive, moment: tuple[str, int], posted: tuple[int, ...]
    ) -> None:
        job_id = archive.submit()
        canceled = ToyCentral(at=moment, stop=lambda: archive.cancel(job_id))
        assert work(archive, run_central=canceled) is Outcome.CANCELED
        assert archive.job(job_id).state == JobState.CANCELED
        assert archive.posts(job_id) == [(f"{job_id}#{i}", price) for i, price in enumerate(posted)]
        assert archive.balance() == Balance(GRANTED, 0, sum(posted))
        assert archive.answers(job_id) == []

    def test_before_anybody_works_on_it_releases_all_at_once(self, archive: Archive) -> None:
        job_id = archive.submit()
        assert archive.cancel(job_id).state == JobState.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, 0)

    def test_while_a_question_is_charged_keeps_its_charge(self, archive: Archive) -> None:
        job_id = archive.submit()
        canceled = ToyCentral(at=("during", 0), stop=lambda: archive.cancel(job_id))
        assert work(archive, run_central=canceled) is Outcome.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])


class TestFailing:
    def test_before_the_first_question_releases_all(self, archive: Archive) -> None:
        job_id = archive.submit()

        def refuse(params, features, curator) -> ClusterModel:
            raise InvalidSpec("not so many features")

        assert work(archive, run_central=refuse) is Outcome.FAILED
        job = archive.job(job_id)
        assert (job.error_code, job.error_detail) == ("validation_failed", "not so many features")
        assert archive.balance() == Balance(GRANTED, 0, 0)

    def test_after_it_posts_what_was_asked_and_quotes_nothing(
        self, archive: Archive, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job_id = archive.submit()

        def stumble(params, features, curator: Curator) -> ClusterModel:
            raise ValueError(f"the private value {curator.count(PRICES[0])} Zw9-4711")

        assert work(archive, run_central=stumble) is Outcome.FAILED
        job = archive.job(job_id)
        assert job.error_code == "internal_error"
        assert "Zw9-4711" not in "".join(capsys.readouterr()) + str(job.error_detail)
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])
        assert archive.answers(job_id) == []

    def test_an_algorithm_that_asks_for_more_than_was_declared_stops_there(self, archive: Archive) -> None:
        job_id = archive.submit(epsilon_nano=PRICES[0] + 10)
        assert work(archive) is Outcome.FAILED
        assert archive.job(job_id).error_code == "budget_exhausted"
        assert archive.posts(job_id) == [(f"{job_id}#0", PRICES[0])]
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])

    def test_no_memory_is_left_to_the_caller(self, archive: Archive) -> None:
        archive.submit()

        def grow(params, features, curator) -> ClusterModel:
            raise MemoryError

        with pytest.raises(MemoryError):
            work(archive, run_central=grow)


class TestAnswers:
    def test_are_stored_to_the_last_bit(self) -> None:
        noisy = np.array([0, -1, 1, 1 << 60, -(1 << 60), 4711], dtype=np.int64)
        back = unpack(pack(noisy))
        assert back.dtype == np.int64
        assert back.tolist() == noisy.tolist()
        assert unpack(pack(noisy[:0])).tolist() == []

    def test_of_many_cells_take_less_room_than_their_words(self) -> None:
        noisy = np.random.default_rng(0).integers(-50, 50, size=65_536)
        assert len(pack(noisy)) < 65_536 * 2

    def test_of_a_finer_grid_hold_as_many_numbers_as_it_has_cells(self, archive: Archive) -> None:
        archive.submit()
        held = must_claim(archive.database)
        found: list[np.ndarray] = []

        def look(params, features, curator: Curator) -> ClusterModel:
            found.append(curator.counts(GridCells((8, 4)), NANO))
            return ToyCentral(prices=())(params, features, curator)

        assert work(archive, held, run_central=look) is Outcome.SUCCEEDED
        assert found[0].shape == (32,)
