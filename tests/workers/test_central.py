"""Jobs over records: each query is charged before the curator reads records, and is answered once, despite crashes."""

from collections.abc import Callable

import numpy as np
import pytest

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from models.database.engine import Database
from models.encryption import Keyring
from models.errors import StaleFence
from models.jobs import lifecycle
from models.jobs.claims import Claim
from models.ledger.amounts import Balance
from models.tables.jobs import JobState
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from tests.databases import on_both_databases
from tests.texts import numbers_in
from tests.workers.archive import ALGORITHM, GRANTED, KEYRING, N_RECORDS, Archive
from tests.workers.driving import LEASE, claim, must_claim
from tests.workers.toy_central import BLOCK_PRICES, DELTA_ATTO, PRICES, Crash, ToyCentral
from workers.central_job import JobJournal, pack, unpack
from workers.job_runner import ClaimOutcome, run

TOY = ToyCentral()
MOMENTS = [("before", 0), ("during", 0), ("before", 1), ("during", 1), ("before", 2), ("during", 2), ("after", 0)]


@pytest.fixture
def archive(database: Database) -> Archive:
    """A central dataset with records."""
    return Archive.create(database)


def work(
    archive: Archive, claimed: Claim | None = None, *, run_central: Callable = TOY, **other: object
) -> ClaimOutcome:
    """Execute one claim."""
    claimed = claimed or must_claim(archive.database)
    return run(archive.database, claimed, run_central=run_central, **{"keyring": lambda: KEYRING, **other})


def crash(archive: Archive, moment: tuple[str, int], claimed: Claim | None = None, **toy: bool) -> Claim:
    """Crash the worker at this moment. Return the next claim, after the lease has expired."""
    with pytest.raises(Crash):
        work(archive, claimed, run_central=ToyCentral(at=moment, **toy))
    return must_claim(archive.database, later=2 * LEASE)


def stored_answers(archive: Archive, job_id: str) -> list[list[int] | None]:
    return [None if each.packed is None else unpack(each.packed).tolist() for each in archive.answers(job_id)]


def answers_of(archive: Archive, job_id: str) -> list[list[int]]:
    return archive.document(job_id)["model"]["diagnostics"]["answers"]


class TestSuccessfulJob:
    @on_both_databases
    @pytest.mark.parametrize("n_records", [N_RECORDS, 0])
    def test_charges_each_query_and_releases_the_rest(self, database: Database, n_records: int) -> None:
        archive = Archive.create(database, n_records=n_records)
        job_id = archive.submit()
        assert archive.balance() == Balance(GRANTED, NANO, 0)
        assert work(archive) is ClaimOutcome.SUCCEEDED
        document, answers = archive.document(job_id), answers_of(archive, job_id)
        odometer = [(query["epsilon_nano"], query["description"], query["n_values"]) for query in document["odometer"]]
        assert odometer == [(price, "counts", len(answer)) for price, answer in zip(PRICES, answers, strict=True)]
        assert (document["rounds"], document["algorithm"]) == ([], ALGORITHM)
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES))
        archive.check(job_id)

    def test_counts_at_most_the_records_that_a_user_may_have(self, database: Database) -> None:
        archive = Archive.create(database, n_records=50, max_per_user=7)
        archive.submit()
        arguments: list[tuple[int, int]] = []

        def count(params, features, curator: Curator) -> ClusterModel:
            arguments.append((curator.n_features, curator.max_per_user))
            assert abs(curator.count(NANO) - 7) < 7 * 40  # e^-40
            return ToyCentral(prices=())(params, features, curator)

        assert work(archive, run_central=count) is ClaimOutcome.SUCCEEDED
        assert arguments == [(2, 7)]

    def test_draws_fresh_noise(self, archive: Archive) -> None:
        job_ids = [archive.submit(), archive.submit()]
        assert [work(archive), work(archive)] == [ClaimOutcome.SUCCEEDED] * 2
        assert answers_of(archive, job_ids[0]) != answers_of(archive, job_ids[1])

    def test_shows_the_number_of_records_nowhere(self, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
        job_id = archive.submit()
        assert work(archive, run_central=ToyCentral(prices=())) is ClaimOutcome.SUCCEEDED
        for text in (str(vars(archive.job(job_id))), str(archive.document(job_id)), *capsys.readouterr()):
            assert N_RECORDS not in numbers_in(text)


class TestCrash:
    @pytest.mark.parametrize("moment", MOMENTS, ids=str)
    def test_costs_nothing_and_changes_no_stored_answer(self, archive: Archive, moment: tuple[str, int]) -> None:
        job_id = archive.submit()
        claimed = crash(archive, moment)
        n_charged = {"before": moment[1], "during": moment[1] + 1, "after": 3}[moment[0]]
        assert [each.epsilon_nano for each in archive.answers(job_id)] == list(PRICES[:n_charged])
        assert archive.balance().charged_nano == sum(PRICES[:n_charged])
        kept = stored_answers(archive, job_id)
        assert kept.count(None) == (moment[0] == "during")
        assert work(archive, claimed) is ClaimOutcome.SUCCEEDED
        n_kept = n_charged - kept.count(None)
        assert answers_of(archive, job_id)[:n_kept] == kept[:n_kept]
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES))
        archive.check(job_id)

    @on_both_databases
    def test_after_crash_leads_to_one_result(self, archive: Archive) -> None:
        job_id, claimed = archive.submit(), None
        for moment in MOMENTS:
            claimed = crash(archive, moment, claimed)
            with archive.database.transaction() as session:
                lifecycle.requeue(session, claimed, is_attempt=False, now=archive.database.clock())
            claimed = must_claim(archive.database)
        before = stored_answers(archive, job_id)
        assert work(archive, claimed) is ClaimOutcome.SUCCEEDED
        assert answers_of(archive, job_id) == before
        archive.check(job_id)

    def test_before_a_different_query_fails_the_job_without_another_charge(self, archive: Archive) -> None:
        job_id = archive.submit()
        claimed = crash(archive, ("before", 2))
        assert work(archive, claimed, run_central=ToyCentral(prices=(NANO // 3,))) is ClaimOutcome.FAILED
        assert (archive.job(job_id).state, archive.job(job_id).error_code) == (JobState.FAILED, "conflict")
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES[:2]))
        assert archive.answers(job_id) == []


class TestBlock:
    """A block of queries with a delta is charged once, before noise is drawn."""

    CHARGED = sum(epsilon for epsilon, _ in BLOCK_PRICES)

    @pytest.fixture
    def archive(self, database: Database) -> Archive:
        """A central dataset with records and a delta."""
        return Archive.create(database, delta_atto=5 * DELTA_ATTO)

    def charges(self, archive: Archive, job_id: str) -> list[tuple[int, int]]:
        return [amounts for _, *amounts in archive.charges_of(job_id)]

    @on_both_databases
    @pytest.mark.parametrize(
        ("moment", "n_charged", "kept"),
        [
            (None, 0, []),
            (("during", 0), 1, []),
            (("before", 2), 2, [0, 1]),  # the answer of a block is empty
            (("during", 2), 3, [0, 1]),
            (("during", 3), 4, [0, 1, 2]),
        ],
        ids=str,
    )
    def test_is_charged_once_despite_a_crash(
        self, archive: Archive, moment: tuple[str, int] | None, n_charged: int, kept: list[int]
    ) -> None:
        job_id = archive.submit(delta_atto=2 * DELTA_ATTO)
        assert archive.balance() == Balance(GRANTED, NANO, 0, 5 * DELTA_ATTO, 2 * DELTA_ATTO, 0)
        claimed = crash(archive, moment, has_block=True) if moment else None
        assert self.charges(archive, job_id) == [list(prices) for prices in BLOCK_PRICES[:n_charged]]
        assert [each.index for each in archive.answers(job_id) if each.packed is not None] == kept
        assert work(archive, claimed, run_central=ToyCentral(has_block=True)) is ClaimOutcome.SUCCEEDED
        assert self.charges(archive, job_id) == [list(prices) for prices in BLOCK_PRICES]
        assert archive.balance() == Balance(GRANTED, 0, self.CHARGED, 5 * DELTA_ATTO, 0, DELTA_ATTO)
        archive.check(job_id)

    def test_beyond_the_delta_of_the_job_is_not_charged(self, archive: Archive) -> None:
        job_id = archive.submit(delta_atto=DELTA_ATTO - 1)
        assert work(archive, run_central=ToyCentral(has_block=True)) is ClaimOutcome.FAILED
        assert archive.job(job_id).error_code == "budget_exhausted"
        assert archive.balance() == Balance(GRANTED, 0, BLOCK_PRICES[0][0], 5 * DELTA_ATTO, 0, 0)

    @pytest.mark.parametrize(("moment", "n_charged"), [(("during", 0), 1), (("before", 2), 2)])
    def test_stays_charged_if_the_job_is_canceled_after_a_crash(
        self, archive: Archive, moment: tuple[str, int], n_charged: int
    ) -> None:
        job_id = archive.submit(delta_atto=2 * DELTA_ATTO)
        with pytest.raises(Crash):
            work(archive, run_central=ToyCentral(at=moment, has_block=True))
        archive.cancel(job_id)
        assert claim(archive.database, later=2 * LEASE) is None
        assert archive.job(job_id).state == JobState.CANCELED
        epsilon, delta = (sum(amounts) for amounts in zip(*BLOCK_PRICES[:n_charged], strict=True))
        assert archive.balance() == Balance(GRANTED, 0, epsilon, 5 * DELTA_ATTO, 0, delta)


class TestStaleClaim:
    def overtake(self, archive: Archive) -> None:
        must_claim(archive.database, later=2 * LEASE)

    @pytest.mark.parametrize(("moment", "n_charged", "n_kept"), [(("before", 1), 1, 1), (("during", 1), 2, 1)])
    def test_charges_nothing_and_stores_nothing(
        self, archive: Archive, moment: tuple[str, int], n_charged: int, n_kept: int
    ) -> None:
        job_id = archive.submit()
        overtaken = ToyCentral(at=moment, stop=lambda: self.overtake(archive))
        assert work(archive, run_central=overtaken) is ClaimOutcome.STALE
        stored = archive.answers(job_id)
        assert (len(stored), sum(each.packed is not None for each in stored)) == (n_charged, n_kept)
        assert archive.balance().charged_nano == sum(PRICES[:n_charged])
        assert archive.job(job_id).state == JobState.RUNNING

    def test_stores_no_result(self, archive: Archive) -> None:
        job_id = archive.submit()
        overtaken = ToyCentral(at=("after", 0), stop=lambda: self.overtake(archive))
        assert work(archive, run_central=overtaken) is ClaimOutcome.STALE
        assert archive.job(job_id).state == JobState.RUNNING
        assert work(archive, must_claim(archive.database, later=4 * LEASE)) is ClaimOutcome.SUCCEEDED
        archive.check(job_id)

    def test_cannot_store_an_answer(self, archive: Archive) -> None:
        archive.submit()
        stale = must_claim(archive.database)
        self.overtake(archive)
        with pytest.raises(StaleFence):
            JobJournal(archive.database, stale).keep(0, np.zeros(1, dtype=np.int64))


class TestCancellation:
    @pytest.mark.parametrize(
        ("moment", "charged"), [(("before", 0), ()), (("before", 1), PRICES[:1]), (("during", 0), PRICES[:1])]
    )
    def test_releases_what_was_not_charged(
        self, archive: Archive, moment: tuple[str, int], charged: tuple[int, ...]
    ) -> None:
        job_id = archive.submit()
        canceled = ToyCentral(at=moment, stop=lambda: archive.cancel(job_id))
        assert work(archive, run_central=canceled) is ClaimOutcome.CANCELED
        assert archive.job(job_id).state == JobState.CANCELED
        assert archive.charges_of(job_id) == [(f"{job_id}#{i}", price, 0) for i, price in enumerate(charged)]
        assert archive.balance() == Balance(GRANTED, 0, sum(charged))
        assert archive.answers(job_id) == []

    def test_of_a_queued_job_releases_everything(self, archive: Archive) -> None:
        assert archive.cancel(archive.submit()).state == JobState.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, 0)


def refuse(params, features, curator) -> ClusterModel:
    raise InvalidSpec("not so many features")


def exhaust_memory(params, features, curator) -> ClusterModel:
    raise MemoryError


class TestFailingJob:
    @pytest.mark.parametrize(
        ("algorithm", "arguments", "code"),
        [
            (ALGORITHM, {"run_central": refuse}, "validation_failed"),
            ({"type": "uniform_grid", "epsilon": 1.0}, {}, "validation_failed"),  # a local algorithm
            (ALGORITHM, {"keyring": lambda: Keyring((bytes(32),))}, "unavailable"),  # not the key of the records
        ],
        ids=["refused parameters", "local algorithm", "other key"],
    )
    def test_before_the_first_query_releases_everything(
        self, archive: Archive, algorithm: dict, arguments: dict, code: str
    ) -> None:
        job_id = archive.submit(algorithm=algorithm)
        assert work(archive, **arguments) is ClaimOutcome.FAILED
        assert archive.job(job_id).error_code == code
        assert archive.balance() == Balance(GRANTED, 0, 0)

    def test_after_a_query_keeps_its_charge_and_does_not_quote_the_error(
        self, archive: Archive, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job_id = archive.submit()

        def fail(params, features, curator: Curator) -> ClusterModel:
            raise ValueError(f"the private value {curator.count(PRICES[0])} Zw9-4711")

        assert work(archive, run_central=fail) is ClaimOutcome.FAILED
        job = archive.job(job_id)
        assert job.error_code == "internal_error"
        assert "Zw9-4711" not in "".join(capsys.readouterr()) + str(job.error_detail)
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])
        assert archive.answers(job_id) == []

    def test_stops_at_a_query_beyond_its_epsilon(self, archive: Archive) -> None:
        job_id = archive.submit(epsilon_nano=PRICES[0] + 10)
        assert work(archive) is ClaimOutcome.FAILED
        assert archive.job(job_id).error_code == "budget_exhausted"
        assert archive.charges_of(job_id) == [(f"{job_id}#0", PRICES[0], 0)]
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])

    def test_passes_a_memory_error_to_the_caller(self, archive: Archive) -> None:
        archive.submit()
        with pytest.raises(MemoryError):
            work(archive, run_central=exhaust_memory)


class TestAnswers:
    def test_are_stored_exactly_and_compressed(self) -> None:
        noisy = np.array([0, -1, 1, 1 << 60, -(1 << 60), 4711], dtype=np.int64)
        unpacked = unpack(pack(noisy))
        assert unpacked.dtype == np.int64
        assert unpacked.tolist() == noisy.tolist()
        assert unpack(pack(noisy[:0])).tolist() == []
        noisy = np.random.default_rng(0).integers(-50, 50, size=65_536)
        assert len(pack(noisy)) < 65_536 * 2

    def test_have_one_number_per_cell(self, archive: Archive) -> None:
        archive.submit()
        shapes: list[tuple[int, ...]] = []

        def count(params, features, curator: Curator) -> ClusterModel:
            shapes.append(curator.counts(GridCells((8, 4)), NANO).shape)
            return ToyCentral(prices=())(params, features, curator)

        assert work(archive, run_central=count) is ClaimOutcome.SUCCEEDED
        assert shapes == [(32,)]
