"""The ledger: never over, each charge once, and a chain that shows every change."""

import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy.exc import DBAPIError

from models import ledger
from models.errors import BudgetExhausted, Conflict, NotFound
from models.job import Job
from models.ledger import GENESIS_HASH, Balance, LedgerEntry
from sfumato.accounting import NANO
from tests.models.world import NOW, World, charge, rolled_back, spend_all, together

SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
COLUMNS = [column.key for column in LedgerEntry.__table__.columns]
ACTOR = "key_test"
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Reference:
    """What a ledger is, in ten lines."""

    granted: int = 0
    posted: int = 0
    held: dict[str, int] = field(default_factory=dict)

    def accepts(self, kind: str, amount: int, job_id: str | None) -> bool:
        free = self.granted - self.posted - sum(self.held.values())
        if kind == "post" and job_id is not None:
            return amount <= self.held.get(job_id, 0)
        return kind in ("grant", "release") or amount <= free

    def apply(self, kind: str, amount: int, job_id: str | None) -> None:
        self.granted += amount if kind == "grant" else 0
        self.posted += amount if kind == "post" else 0
        if job_id is not None:
            self.held[job_id] = self.held.get(job_id, 0) + (amount if kind == "reserve" else -amount)


Both = tuple[int, int]  # of epsilon, of delta

AMOUNTS = st.tuples(st.integers(0, 60), st.one_of(st.just(0), st.integers(0, 60)))
INDEX = st.integers(0, 1_000)


class LedgerMachine(RuleBasedStateMachine):
    """Grants, reserves, posts and releases in any order, repeated, undone, against the reference."""

    world: World  # set by the test

    @initialize()
    def begin(self) -> None:
        self.dataset_id = f"ds_{id(self)}_{self.world.now}"
        self.world.now += 1
        self.references = Reference(), Reference()
        self.done: list[tuple[str, Both, str, str | None]] = []
        with self.world.database.transaction() as session:
            ledger.open_ledger(session, self.dataset_id)

    def refused(self, kind: str, amounts: Both, job_id: str | None) -> list[str]:
        """Of which there is too little."""
        names = zip(("epsilon", "delta"), self.references, amounts, strict=True)
        return [name for name, each, amount in names if not each.accepts(kind, amount, job_id)]

    def apply(self, kind: str, amounts: Both, reference: str, job_id: str | None) -> None:
        for each, amount in zip(self.references, amounts, strict=True):
            each.apply(kind, amount, job_id)
        self.done.append((kind, amounts, reference, job_id))

    def try_to(self, kind: str, amounts: Both, reference: str, job_id: str | None) -> None:
        refused = self.refused(kind, amounts, job_id)
        short = None
        try:
            with self.world.database.transaction() as session:
                charge(session, self.dataset_id, kind, amounts[0], reference, job_id, amounts[1])
        except BudgetExhausted as error:
            short = error.short
        assert short == next(iter(refused), None)
        if short is None:
            self.apply(kind, amounts, reference, job_id)

    @property
    def held(self) -> dict[str, Both]:
        epsilon, delta = (each.held for each in self.references)
        return {job_id: (epsilon[job_id], delta[job_id]) for job_id in epsilon}

    def new_reference(self) -> str:
        return f"ref_{len(self.done)}"

    @rule(amount=AMOUNTS)
    def grant(self, amount: Both) -> None:
        self.try_to("grant", amount, self.new_reference(), None)

    @rule(amount=AMOUNTS)
    def reserve(self, amount: Both) -> None:
        reference = self.new_reference()
        self.try_to("reserve", amount, reference, reference)

    @rule(amount=AMOUNTS)
    def post_from_what_is_free(self, amount: Both) -> None:
        self.try_to("post", amount, self.new_reference(), None)

    @rule(amount=AMOUNTS, index=INDEX)
    def post_from_a_reservation(self, amount: Both, index: int) -> None:
        job_ids = [*self.held, "job_without_reservation"]
        self.try_to("post", amount, self.new_reference(), job_ids[index % len(job_ids)])

    @rule(index=INDEX)
    def release(self, index: int) -> None:
        if self.held:
            job_id = list(self.held)[index % len(self.held)]
            left = self.held[job_id]
            with self.world.database.transaction() as session:
                entry = charge(session, self.dataset_id, "release", 0, job_id, job_id)
            assert ((entry.epsilon_nano, entry.delta_atto) if entry else (0, 0)) == left
            if any(left):
                self.apply("release", left, job_id, job_id)

    @rule(index=INDEX)
    def repeat(self, index: int) -> None:
        if self.done:
            kind, amounts, reference, job_id = self.done[index % len(self.done)]
            with self.world.database.transaction() as session:
                entry = charge(session, self.dataset_id, kind, amounts[0], reference, job_id, amounts[1])
                assert (entry is None) == (kind == "release")  # nothing is left to be released again
                assert entry is None or told(entry) == (kind, amounts, reference, job_id)

    @rule(index=INDEX, more=st.sampled_from([(1, 0), (0, 1), (5, 5)]))
    def repeat_with_another_amount(self, index: int, more: Both) -> None:
        others = [each for each in self.done if each[0] != "release"]
        if others:
            kind, (epsilon, delta), reference, job_id = others[index % len(others)]
            with pytest.raises(Conflict), self.world.database.transaction() as session:
                charge(session, self.dataset_id, kind, epsilon + more[0], reference, job_id, delta + more[1])

    @rule(kind=st.sampled_from(["grant", "reserve", "post"]), amount=AMOUNTS)
    def fail_after_the_charge(self, kind: str, amount: Both) -> None:
        short = None
        with rolled_back(self.world.database) as session:
            try:
                job_id = "ref_undone" if kind == "reserve" else None
                charge(session, self.dataset_id, kind, amount[0], "ref_undone", job_id, amount[1])
            except BudgetExhausted as error:
                short = error.short
        assert short == next(iter(self.refused(kind, amount, None)), None)

    @invariant()
    def agrees_with_the_reference(self) -> None:
        with self.world.database.reading() as session:
            balance = ledger.balance(session, self.dataset_id)
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=1000)
            checked = ledger.verify(session, self.dataset_id)
            held = {job_id: ledger.reserved_for(session, self.dataset_id, job_id) for job_id in self.held}
        assert balance.posted_nano + balance.reserved_nano <= balance.granted_nano
        assert balance.posted_delta_atto + balance.reserved_delta_atto <= balance.granted_delta_atto
        assert held == self.held
        known = [(each.granted, sum(each.held.values()), each.posted) for each in self.references]
        assert balance == Balance(*known[0], *known[1])
        assert balance == Balance(*sum_of(entries, "epsilon_nano"), *sum_of(entries, "delta_atto"))
        assert [told(entry) for entry in entries] == self.done
        assert (checked.ok, checked.n_entries) == (True, len(self.done))


def told(entry: LedgerEntry) -> tuple[str, Both, str, str | None]:
    return entry.kind, (entry.epsilon_nano, entry.delta_atto), entry.reference, entry.reservation


def sum_of(entries: list[LedgerEntry], amount: str) -> tuple[int, int, int]:
    def total(kind: str, *, reserved: bool = False) -> int:
        return sum(
            getattr(e, amount) for e in entries if e.kind == kind and (e.reservation is not None or not reserved)
        )

    held = total("reserve") - total("release") - total("post", reserved=True)
    return total("grant"), held, total("post")


class TestAgainstAReference:
    def test_any_sequence_of_charges_retries_and_rollbacks_agrees_with_ten_plain_lines(self, world: World) -> None:
        class Machine(LedgerMachine):
            pass

        Machine.world = world
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=10,
                stateful_step_count=20,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )


class TestTheBudget:
    def test_of_200_submitters_at_once_a_budget_for_ten_serves_ten(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10 * NANO)

        outcomes = together([lambda: world.submit(dataset, epsilon_nano=NANO)] * 200)

        assert sum(isinstance(outcome, Job) for outcome in outcomes) == 10
        assert {type(outcome) for outcome in outcomes} == {Job, BudgetExhausted}
        assert world.balance(dataset.id) == Balance(10 * NANO, 10 * NANO, 0)
        with world.database.reading() as session:
            assert ledger.verify(session, dataset.id).n_entries == 11

    def test_of_charges_of_every_kind_at_once_each_that_fits_is_served(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=20)

        def spend(i: int) -> str:
            with world.database.transaction() as session:
                if i % 2:
                    charge(session, dataset.id, "post", 1, f"rnd_{i}", None)
                else:
                    charge(session, dataset.id, "reserve", 1, f"job_{i}", None)
            return "served"

        outcomes = together([partial(spend, i) for i in range(40)])

        assert sorted(str(type(each).__name__) for each in outcomes) == ["BudgetExhausted"] * 20 + ["str"] * 20
        balance = world.balance(dataset.id)
        assert balance.reserved_nano + balance.posted_nano == 20

    @SQLITE  # whose lock is one on a file
    def test_of_two_processes_neither_overspends(self, world: World, database_url: str) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        script = (
            "import sys; from models.db import Database; from tests.models.world import spend_all\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "database = Database(sys.argv[1])\n"
            "print(spend_all(database, sys.argv[2], 'theirs')); database.close()\n"
        )
        command = [sys.executable, "-W", "error", "-c", script, database_url, dataset.id]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen(command, text=True, cwd=REPOSITORY, **pipes)
        ready = other.stdout.readline()  # imported, so that the two meet
        other.stdin.write("\n")
        other.stdin.flush()
        ours = spend_all(world.database, dataset.id, "ours")
        theirs = int(other.communicate(timeout=60)[0])

        assert (ready, ours + theirs) == ("ready\n", 10)
        assert world.balance(dataset.id) == Balance(10, 0, 10)

    def test_what_is_refused_names_the_amounts_and_holds_nothing(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=3 * NANO)
        world.submit(dataset, epsilon_nano=2 * NANO)

        with pytest.raises(BudgetExhausted) as refused:
            world.submit(dataset, epsilon_nano=NANO + 1)

        error = refused.value
        amounts = (error.requested, error.granted, error.reserved, error.posted)
        assert (error.short, amounts) == ("epsilon", (NANO + 1, 3 * NANO, 2 * NANO, 0))
        with world.database.reading() as session:
            (_, reserve) = ledger.page(session, dataset.id, after_seq=0, limit=10)
        assert error.entries == (reserve.id,)
        assert "1.000000001" in str(error)

    def test_a_job_cannot_spend_another_jobs_reservation(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        small, _large = (world.submit(dataset, epsilon_nano=amount) for amount in (2, 8))

        with pytest.raises(BudgetExhausted), world.database.transaction() as session:
            charge(session, dataset.id, "post", 3, "rnd_x", small.id)

    def test_the_database_itself_refuses_an_entry_that_is_over(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        forged = {"epsilon_nano": 11, "granted_nano": 10, "reserved_nano": 0, "posted_nano": 11}

        with pytest.raises(DBAPIError, match="never_over"), world.database.transaction() as session:
            session.add(
                LedgerEntry(
                    id="led_forged",
                    dataset_id=dataset.id,
                    seq=2,
                    kind="post",
                    reference="rnd_x",
                    reservation=None,
                    actor=ACTOR,
                    at=NOW,
                    prev_hash=GENESIS_HASH,
                    hash=GENESIS_HASH,
                    **forged,
                )
            )

    def test_a_dataset_without_a_ledger_is_not_found(self, world: World) -> None:
        with world.database.transaction() as session:
            with pytest.raises(NotFound):
                charge(session, "ds_unknown", "grant", 1, "ref", None)
            with pytest.raises(NotFound):
                ledger.verify(session, "ds_unknown")
            with pytest.raises(NotFound):
                ledger.head(session, "ds_unknown")

    def test_every_dataset_with_a_ledger_is_listed(self, world: World) -> None:
        made = sorted(world.new_dataset().id for _ in range(3))

        with world.database.reading() as session:
            assert ledger.dataset_ids(session) == made
