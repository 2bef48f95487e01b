"""Answers: charged once, told once, gone with their job; the ledger says what each question cost."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from sqlalchemy import select

from models import answer, job, ledger
from models.answer import Answer, Asked
from models.dataset import Dataset
from models.errors import BudgetExhausted, Conflict, StaleFence
from models.job import Claim, Job, JobState
from models.ledger import Balance
from sfumato.accounting import NANO
from tests.models.world import LEASE, World, cancel, rolled_back, succeed

QUESTION = Asked("counts", NANO // 4, 12)


@pytest.fixture
def within(world: World) -> Dataset:
    return world.new_dataset()


@pytest.fixture
def queued(world: World, within: Dataset) -> Job:
    return world.submit(within, epsilon_nano=NANO)


def charge(world: World, held: Claim, index: int = 0, question: Asked = QUESTION) -> bytes | None:
    with world.database.transaction() as session:
        return answer.charge(session, held, index, question, now=world.now)


def keep(world: World, held: Claim, index: int = 0, packed: bytes = b"noisy") -> None:
    with world.database.transaction() as session:
        answer.keep(session, held, index, packed)


def stored(world: World, job_id: str) -> list[tuple[int, str, int, int, bytes | None]]:
    with world.database.reading() as session:
        rows = session.scalars(select(Answer).where(Answer.job_id == job_id).order_by(Answer.index)).all()
        return [(row.index, row.what, row.epsilon_nano, row.n_values, row.packed) for row in rows]


class TestACharge:
    def test_is_posted_under_the_jobs_reservation_and_its_own_name(
        self, world: World, within: Dataset, queued: Job
    ) -> None:
        held = world.claimed()
        assert charge(world, held) is None
        assert world.balance(within.id) == Balance(10 * NANO, NANO - NANO // 4, NANO // 4)
        assert world.chain(within.id)[-1] == ("post", NANO // 4, f"{queued.id}#0")
        with world.database.reading() as session:
            (*_, posting) = ledger.page(session, within.id, after_seq=0, limit=10)
            assert (posting.reservation, posting.actor) == (queued.id, queued.created_by)
        assert stored(world, queued.id) == [(0, "counts", NANO // 4, 12, None)]

    def test_that_is_repeated_is_posted_once(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        assert [charge(world, held) for _ in range(3)] == [None] * 3
        keep(world, held)
        assert charge(world, held) == b"noisy"
        assert world.balance(within.id).posted_nano == NANO // 4

    def test_of_the_next_worker_finds_the_answer_of_the_one_before(self, world: World, queued: Job) -> None:
        held = world.claimed()
        charge(world, held)
        keep(world, held, packed=b"told before")
        world.now += 2 * LEASE
        assert charge(world, world.claimed()) == b"told before"

    @pytest.mark.parametrize(
        "other",
        [
            Asked("sums", NANO // 4, 12),
            Asked("counts", NANO // 4 + 1, 12),
            Asked("counts", NANO // 4, 13),
            Asked("counts", NANO // 4, 12, "f" * 32),
        ],
    )
    def test_of_another_question_under_a_number_that_is_taken_is_refused(
        self, world: World, within: Dataset, queued: Job, other: Asked
    ) -> None:
        held = world.claimed()
        charge(world, held)
        with pytest.raises(Conflict):
            charge(world, held, 0, other)
        assert world.balance(within.id).posted_nano == NANO // 4

    def test_beyond_the_reservation_by_one_nano_epsilon_is_refused(
        self, world: World, within: Dataset, queued: Job
    ) -> None:
        held = world.claimed()
        charge(world, held)
        with pytest.raises(BudgetExhausted):
            charge(world, held, 1, Asked("counts", NANO - NANO // 4 + 1, 1))
        assert [row[0] for row in stored(world, queued.id)] == [0]
        assert charge(world, held, 1, Asked("counts", NANO - NANO // 4, 1)) is None
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO)

    def test_and_what_is_stored_of_it_are_one_transaction(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        with rolled_back(world.database) as session:
            answer.charge(session, held, 0, QUESTION, now=world.now)
        assert stored(world, queued.id) == []
        assert world.balance(within.id).posted_nano == 0

    def test_of_a_stale_claim_is_refused(self, world: World, within: Dataset, queued: Job) -> None:
        stale = world.claimed()
        world.now += 2 * LEASE
        world.claimed()
        with pytest.raises(StaleFence):
            charge(world, stale)
        assert world.balance(within.id).posted_nano == 0

    def test_has_a_name_that_fits_its_column_whatever_its_number(self, world: World, queued: Job) -> None:
        longest = answer.reference(queued.id, answer.MAX_QUESTIONS - 1)
        assert len(longest) <= 40
        with pytest.raises(Conflict):
            charge(world, world.claimed(), answer.MAX_QUESTIONS)


class TestAnAnswer:
    def test_is_kept_once(self, world: World, queued: Job) -> None:
        held = world.claimed()
        charge(world, held)
        keep(world, held, packed=b"first")
        with pytest.raises(Conflict):
            keep(world, held, packed=b"second")
        assert charge(world, held) == b"first"

    def test_of_what_was_never_charged_is_not_kept(self, world: World, queued: Job) -> None:
        with pytest.raises(Conflict):
            keep(world, world.claimed())
        assert stored(world, queued.id) == []

    def test_of_a_stale_claim_is_not_kept(self, world: World, queued: Job) -> None:
        stale = world.claimed()
        charge(world, stale)
        world.now += 2 * LEASE
        held = world.claimed()
        with pytest.raises(StaleFence):
            keep(world, stale)
        assert charge(world, held) is None


class TestTheEndOfTheJob:
    def begun(self, world: World) -> Claim:
        held = world.claimed()
        charge(world, held)
        keep(world, held)
        charge(world, held, 1)
        return held

    def check(self, world: World, within: Dataset, queued: Job, state: JobState) -> None:
        assert world.job(queued.id).state == state
        assert stored(world, queued.id) == []
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2)

    def test_with_a_result_drops_its_answers(self, world: World, within: Dataset, queued: Job) -> None:
        held = self.begun(world)
        with world.database.transaction() as session:
            succeed(session, held)
        self.check(world, within, queued, JobState.SUCCEEDED)

    def test_without_one_drops_them_as_well(self, world: World, within: Dataset, queued: Job) -> None:
        held = self.begun(world)
        with world.database.transaction() as session:
            job.fail(session, held, JobState.FAILED, code="internal_error", detail="", now=world.now)
        self.check(world, within, queued, JobState.FAILED)

    def test_by_cancelling_drops_them_when_the_worker_lets_go(self, world: World, within: Dataset, queued: Job) -> None:
        held = self.begun(world)
        cancel(world, queued.id)
        assert len(stored(world, queued.id)) == 2
        with world.database.transaction() as session:
            job.let_go(session, held, now=world.now)
        self.check(world, within, queued, JobState.CANCELED)

    def test_by_workers_that_died_drops_them(self, world: World, within: Dataset, queued: Job) -> None:
        self.begun(world)
        world.now += 2 * LEASE
        assert world.claim(max_attempts=1) is None
        self.check(world, within, queued, JobState.FAILED)

    def test_leaves_the_answers_of_other_jobs(self, world: World, within: Dataset, queued: Job) -> None:
        held = self.begun(world)
        other = world.submit(within)
        charge(world, world.claimed())
        with world.database.transaction() as session:
            succeed(session, held)
        assert len(stored(world, other.id)) == 1


PRICES = st.integers(1, 40)
BYTES = st.binary(max_size=8)


class Asking(RuleBasedStateMachine):
    """A job's questions in any order of charges, answers, crashes and rollbacks, against a list."""

    world: World  # set by the test
    budget = 100

    @initialize()
    def begin(self) -> None:
        self.within = self.world.new_dataset(epsilon_nano=self.budget)
        self.job_id = self.world.submit(self.within, epsilon_nano=self.budget).id
        self.held = self.world.claimed()
        self.asked: list[tuple[int, bytes | None]] = []  # price and answer

    @rule(price=PRICES)
    def ask(self, price: int) -> None:
        left = self.budget - sum(price for price, _ in self.asked)
        try:
            assert charge(self.world, self.held, len(self.asked), Asked("q", price, 1)) is None
        except BudgetExhausted:
            assert price > left
            return
        assert price <= left
        self.asked.append((price, None))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), packed=BYTES)
    def answer_one(self, data: Any, packed: bytes) -> None:
        index = data.draw(st.integers(0, len(self.asked) - 1))
        price, before = self.asked[index]
        if before is not None:
            with pytest.raises(Conflict):
                keep(self.world, self.held, index, packed)
            return
        keep(self.world, self.held, index, packed)
        self.asked[index] = (price, packed)

    @rule()
    def crash(self) -> None:
        stale, self.held = self.held, self._reclaimed()
        with pytest.raises(StaleFence):
            charge(self.world, stale, len(self.asked), Asked("q", 1, 1))

    def _reclaimed(self) -> Claim:
        self.world.now += 2 * LEASE
        held = self.world.claim(max_attempts=10_000)
        assert held is not None
        return held

    @rule(price=PRICES)
    def roll_back(self, price: int) -> None:
        with rolled_back(self.world.database) as session:
            try:
                answer.charge(session, self.held, len(self.asked), Asked("q", price, 1), now=self.world.now)
            except BudgetExhausted:
                assert price > self.budget - sum(price for price, _ in self.asked)

    @invariant()
    def every_question_is_charged_once_and_told_what_it_was_told(self) -> None:
        replayed = [charge(self.world, self.held, i, Asked("q", price, 1)) for i, (price, _) in enumerate(self.asked)]
        assert replayed == [packed for _, packed in self.asked]
        posts = [(amount, name) for kind, amount, name in self.world.chain(self.within.id) if kind == "post"]
        assert posts == [(price, f"{self.job_id}#{i}") for i, (price, _) in enumerate(self.asked)]
        spent = sum(amount for amount, _ in posts)
        assert self.world.balance(self.within.id) == Balance(self.budget, self.budget - spent, spent)

    def teardown(self) -> None:
        cancel(self.world, self.job_id)
        with self.world.database.transaction() as session:
            job.let_go(session, self.held, now=self.world.now)


@pytest.mark.slow
@pytest.mark.ci
def test_any_sequence_of_charges_answers_and_crashes_agrees_with_a_list(world: World) -> None:
    class Machine(Asking):
        pass

    Machine.world = world
    run_machine(
        Machine,
        settings=settings(
            max_examples=10,
            stateful_step_count=15,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
