"""Query answers: charged once, stored once, and deleted at the end of their job."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from sqlalchemy import select

from models.errors import BudgetExhausted, Conflict, StaleFence
from models.jobs import curator_answers, lifecycle
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from models.ledger import ledger
from models.ledger.amounts import Balance
from models.tables.datasets import Dataset
from models.tables.jobs import Job, JobState, QueryAnswer
from sfumato.privacy.accounting import NANO
from tests.models.world import LEASE, World, cancel, rolled_back, succeed


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


QUERY = ChargedQuery("counts", NANO // 4, 12)


@pytest.fixture
def within(world: World) -> Dataset:
    return world.new_dataset()


@pytest.fixture
def queued(world: World, within: Dataset) -> Job:
    return world.submit(within, epsilon_nano=NANO)


def charge(world: World, held: Claim, index: int = 0, question: ChargedQuery = QUERY) -> bytes | None:
    return world.write(curator_answers.charge, held, index, question, now=world.now)


def keep(world: World, held: Claim, index: int = 0, packed: bytes = b"noisy") -> None:
    world.write(curator_answers.store, held, index, packed)


def stored(world: World, job_id: str) -> list[tuple[int, str, int, int, bytes | None]]:
    with world.database.reading() as session:
        rows = session.scalars(
            select(QueryAnswer).where(QueryAnswer.job_id == job_id).order_by(QueryAnswer.index)
        ).all()
        return [(row.index, row.description, row.epsilon_nano, row.n_values, row.packed) for row in rows]


class TestCharge:
    def test_charges_the_reservation_under_its_own_reference(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        assert charge(world, held) is None
        assert world.balance(within.id) == Balance(10 * NANO, NANO - NANO // 4, NANO // 4)
        assert world.chain(within.id)[-1] == ("charge", NANO // 4, f"{queued.id}#0")
        with world.database.reading() as session:
            (*_, posting) = ledger.page(session, within.id, after_seq=0, limit=10)
            assert (posting.reservation, posting.actor) == (queued.id, queued.created_by)
        assert stored(world, queued.id) == [(0, "counts", NANO // 4, 12, None)]

    def test_repeated_query_is_charged_once(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        assert [charge(world, held) for _ in range(3)] == [None] * 3
        keep(world, held)
        assert charge(world, held) == b"noisy"
        assert world.balance(within.id).charged_nano == NANO // 4

    def test_next_worker_receives_the_stored_answer(self, world: World, queued: Job) -> None:
        held = world.claimed()
        charge(world, held)
        keep(world, held, packed=b"stored before")
        world.now += 2 * LEASE
        assert charge(world, world.claimed()) == b"stored before"

    @pytest.mark.parametrize(
        "other",
        [
            ChargedQuery("sums", NANO // 4, 12),
            ChargedQuery("counts", NANO // 4 + 1, 12),
            ChargedQuery("counts", NANO // 4, 13),
            ChargedQuery("counts", NANO // 4, 12, "f" * 32),
        ],
    )
    def test_different_query_with_a_used_index_is_rejected(
        self, world: World, within: Dataset, queued: Job, other: ChargedQuery
    ) -> None:
        held = world.claimed()
        charge(world, held)
        with pytest.raises(Conflict):
            charge(world, held, 0, other)
        assert world.balance(within.id).charged_nano == NANO // 4

    def test_charge_above_the_reservation_is_rejected(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        charge(world, held)
        with pytest.raises(BudgetExhausted):
            charge(world, held, 1, ChargedQuery("counts", NANO - NANO // 4 + 1, 1))
        assert [row[0] for row in stored(world, queued.id)] == [0]
        assert charge(world, held, 1, ChargedQuery("counts", NANO - NANO // 4, 1)) is None
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO)

    def test_charge_and_row_are_one_transaction(self, world: World, within: Dataset, queued: Job) -> None:
        held = world.claimed()
        with rolled_back(world.database) as session:
            curator_answers.charge(session, held, 0, QUERY, now=world.now)
        assert stored(world, queued.id) == []
        assert world.balance(within.id).charged_nano == 0

    def test_stale_claim_is_rejected(self, world: World, within: Dataset, queued: Job) -> None:
        stale = world.claimed()
        world.now += 2 * LEASE
        world.claimed()
        with pytest.raises(StaleFence):
            charge(world, stale)
        assert world.balance(within.id).charged_nano == 0

    def test_reference_fits_its_column_for_every_index(self, world: World, queued: Job) -> None:
        longest = curator_answers.reference(queued.id, curator_answers.MAX_QUERIES - 1)
        assert len(longest) <= 40
        with pytest.raises(Conflict):
            charge(world, world.claimed(), curator_answers.MAX_QUERIES)


class TestStore:
    def test_answer_is_stored_once(self, world: World, queued: Job) -> None:
        held = world.claimed()
        charge(world, held)
        keep(world, held, packed=b"first")
        with pytest.raises(Conflict):
            keep(world, held, packed=b"second")
        assert charge(world, held) == b"first"

    def test_answer_without_a_charge_is_rejected(self, world: World, queued: Job) -> None:
        with pytest.raises(Conflict):
            keep(world, world.claimed())
        assert stored(world, queued.id) == []

    def test_answer_of_a_stale_claim_is_rejected(self, world: World, queued: Job) -> None:
        stale = world.claimed()
        charge(world, stale)
        world.now += 2 * LEASE
        held = world.claimed()
        with pytest.raises(StaleFence):
            keep(world, stale)
        assert charge(world, held) is None


def end_with_success(world: World, claim: Claim) -> None:
    world.write(succeed, claim)


def end_with_failure(world: World, claim: Claim) -> None:
    world.write(lifecycle.fail, claim, JobState.FAILED, code="internal_error", detail="", now=world.now)


def end_with_cancellation(world: World, claim: Claim) -> None:
    cancel(world, claim.job_id)
    assert len(stored(world, claim.job_id)) == 2
    world.write(lifecycle.cancel_claimed, claim, now=world.now)


def end_after_the_last_attempt(world: World, claim: Claim) -> None:
    world.now += 2 * LEASE
    assert world.claim(max_attempts=1) is None


class TestEndOfJob:
    def start(self, world: World) -> Claim:
        """Charge two queries and answer the first."""
        held = world.claimed()
        charge(world, held)
        keep(world, held)
        charge(world, held, 1)
        return held

    @pytest.mark.parametrize(
        ("end", "state"),
        [
            (end_with_success, JobState.SUCCEEDED),
            (end_with_failure, JobState.FAILED),
            (end_with_cancellation, JobState.CANCELED),
            (end_after_the_last_attempt, JobState.FAILED),
        ],
    )
    def test_deletes_the_answers_and_releases_the_rest(
        self, world: World, within: Dataset, queued: Job, end: Callable[[World, Claim], None], state: JobState
    ) -> None:
        end(world, self.start(world))
        assert world.job(queued.id).state == state
        assert stored(world, queued.id) == []
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2)

    def test_answers_of_other_jobs_remain(self, world: World, within: Dataset, queued: Job) -> None:
        held = self.start(world)
        other = world.submit(within)
        charge(world, world.claimed())
        world.write(succeed, held)
        assert len(stored(world, other.id)) == 1


PRICES = st.integers(1, 40)
BYTES = st.binary(max_size=8)


class QueryMachine(RuleBasedStateMachine):
    """Queries of a job in any order of charges, answers, crashes and rollbacks, compared with a list."""

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
            assert charge(self.world, self.held, len(self.asked), ChargedQuery("q", price, 1)) is None
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
            charge(self.world, stale, len(self.asked), ChargedQuery("q", 1, 1))

    def _reclaimed(self) -> Claim:
        self.world.now += 2 * LEASE
        held = self.world.claim(max_attempts=10_000)
        assert held is not None
        return held

    @rule(price=PRICES)
    def roll_back(self, price: int) -> None:
        with rolled_back(self.world.database) as session:
            try:
                curator_answers.charge(
                    session, self.held, len(self.asked), ChargedQuery("q", price, 1), now=self.world.now
                )
            except BudgetExhausted:
                assert price > self.budget - sum(price for price, _ in self.asked)

    @invariant()
    def every_query_is_charged_once_and_gets_its_stored_answer(self) -> None:
        replayed = [
            charge(self.world, self.held, i, ChargedQuery("q", price, 1)) for i, (price, _) in enumerate(self.asked)
        ]
        assert replayed == [packed for _, packed in self.asked]
        posts = [(amount, name) for kind, amount, name in self.world.chain(self.within.id) if kind == "charge"]
        assert posts == [(price, f"{self.job_id}#{i}") for i, (price, _) in enumerate(self.asked)]
        spent = sum(amount for amount, _ in posts)
        assert self.world.balance(self.within.id) == Balance(self.budget, self.budget - spent, spent)

    def teardown(self) -> None:
        cancel(self.world, self.job_id)
        self.world.write(lifecycle.cancel_claimed, self.held, now=self.world.now)


@pytest.mark.slow
def test_any_sequence_of_charges_answers_and_crashes_matches_a_list(world: World) -> None:
    class Machine(QueryMachine):
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
