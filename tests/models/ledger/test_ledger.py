"""The ledger: never overspent, and every charge is entered once."""

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

from models.errors import BudgetExhausted, Conflict, NotFound
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables.jobs import Job
from models.tables.ledger import LedgerEntry
from sfumato.privacy.accounting import NANO
from sfumato.privacy.ledger import GENESIS_HASH
from tests.databases import on_sqlite
from tests.models.world import NOW, World, charge, rolled_back, spend_all, together

COLUMNS = [column.key for column in LedgerEntry.__table__.columns]
ACTOR = "key_test"
REPOSITORY = Path(__file__).parents[3]


@dataclass
class Reference:
    """The reference ledger, in ten lines."""

    granted: int = 0
    charged: int = 0
    held: dict[str, int] = field(default_factory=dict)

    def accepts(self, kind: str, amount: int, job_id: str | None) -> bool:
        free = self.granted - self.charged - sum(self.held.values())
        if kind == "charge" and job_id is not None:
            return amount <= self.held.get(job_id, 0)
        return kind in ("grant", "release") or amount <= free

    def apply(self, kind: str, amount: int, job_id: str | None) -> None:
        self.granted += amount if kind == "grant" else 0
        self.charged += amount if kind == "charge" else 0
        if job_id is not None:
            self.held[job_id] = self.held.get(job_id, 0) + (amount if kind == "reserve" else -amount)


Given = tuple[int, ...]  # epsilon, delta, and both of the shuffled budget

CURRENCIES = ("epsilon", "delta", "shuffled_epsilon", "shuffled_delta")
OPTIONAL = st.one_of(st.just(0), st.integers(0, 60))
AMOUNTS = st.tuples(st.integers(0, 60), OPTIONAL, OPTIONAL, OPTIONAL)
RESERVED = st.tuples(st.integers(0, 60), OPTIONAL, st.just(0), st.just(0))
INDEX = st.integers(0, 1_000)


class LedgerMachine(RuleBasedStateMachine):
    """Grants, reserves, posts and releases in any order, repeated, undone, against the reference."""

    world: World  # set by the test

    @initialize()
    def begin(self) -> None:
        self.dataset_id = f"ds_{id(self)}_{self.world.now}"
        self.world.now += 1
        self.references = [Reference() for _ in CURRENCIES]
        self.done: list[tuple[str, Given, str, str | None]] = []
        self.world.write(ledger.open_ledger, self.dataset_id)

    def each(self, amounts: Given, job_id: str | None) -> list[tuple[str, Reference, int, str | None]]:
        """Return currency, reference ledger, amount and reservation. The shuffled budget has no reservations."""
        jobs = (job_id, job_id, None, None)
        return list(zip(CURRENCIES, self.references, amounts, jobs, strict=True))

    def refused(self, kind: str, amounts: Given, job_id: str | None) -> list[str]:
        """Return the currencies that are exceeded."""
        return [name for name, each, amount, job in self.each(amounts, job_id) if not each.accepts(kind, amount, job)]

    def apply(self, kind: str, amounts: Given, reference: str, job_id: str | None) -> None:
        for _, each, amount, job in self.each(amounts, job_id):
            each.apply(kind, amount, job)
        self.done.append((kind, amounts, reference, job_id))

    def try_to(self, kind: str, amounts: Given, reference: str, job_id: str | None) -> None:
        refused = self.refused(kind, amounts, job_id)
        short = None
        try:
            self.world.write(charge, self.dataset_id, kind, amounts[0], reference, job_id, amounts[1], amounts[2:])
        except BudgetExhausted as error:
            short = error.short
        assert short == next(iter(refused), None)
        if short is None:
            self.apply(kind, amounts, reference, job_id)

    @property
    def held(self) -> dict[str, Amounts]:
        epsilon, delta = (each.held for each in self.references[:2])
        return {job_id: Amounts(epsilon[job_id], delta[job_id]) for job_id in epsilon}

    def new_reference(self) -> str:
        return f"ref_{len(self.done)}"

    @rule(amount=AMOUNTS)
    def grant(self, amount: Given) -> None:
        self.try_to("grant", amount, self.new_reference(), None)

    @rule(amount=RESERVED)
    def reserve(self, amount: Given) -> None:
        reference = self.new_reference()
        self.try_to("reserve", amount, reference, reference)

    @rule(amount=AMOUNTS)
    def post_from_what_is_free(self, amount: Given) -> None:
        self.try_to("charge", amount, self.new_reference(), None)

    @rule(amount=AMOUNTS, index=INDEX)
    def post_from_a_reservation(self, amount: Given, index: int) -> None:
        job_ids = [*self.held, "job_without_reservation"]
        self.try_to("charge", amount, self.new_reference(), job_ids[index % len(job_ids)])

    @rule(index=INDEX)
    def release(self, index: int) -> None:
        if self.held:
            job_id = list(self.held)[index % len(self.held)]
            left = self.held[job_id]
            entry = self.world.write(charge, self.dataset_id, "release", 0, job_id, job_id)
            assert ((entry.epsilon_nano, entry.delta_atto) if entry else (0, 0)) == left[:2]
            if any(left):
                self.apply("release", left[:4], job_id, job_id)

    @rule(index=INDEX)
    def repeat(self, index: int) -> None:
        if self.done:
            kind, amounts, reference, job_id = self.done[index % len(self.done)]
            with self.world.database.transaction() as session:
                entry = charge(session, self.dataset_id, kind, amounts[0], reference, job_id, amounts[1], amounts[2:])
                assert (entry is None) == (kind == "release")  # nothing is left to be released again
                assert entry is None or told(entry) == (kind, amounts, reference, job_id)

    @rule(index=INDEX, more=st.sampled_from([(1, 0, 0, 0), (0, 1, 0, 0), (5, 5, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]))
    def repeat_with_another_amount(self, index: int, more: Given) -> None:
        others = [
            each for each in self.done if each[0] in ("grant", "charge") or (each[0] == "reserve" and any(more[:2]))
        ]
        if others:
            kind, amounts, reference, job_id = others[index % len(others)]
            changed = [amount + add for amount, add in zip(amounts, more, strict=True)]
            with pytest.raises(Conflict), self.world.database.transaction() as session:
                charge(session, self.dataset_id, kind, changed[0], reference, job_id, changed[1], tuple(changed[2:]))

    @rule(kind=st.sampled_from(["grant", "reserve", "charge"]), amount=RESERVED)
    def fail_after_the_charge(self, kind: str, amount: Given) -> None:
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
        assert balance.charged_nano + balance.reserved_nano <= balance.granted_nano
        assert balance.charged_delta_atto + balance.reserved_delta_atto <= balance.granted_delta_atto
        assert held == self.held
        known = [(each.granted, sum(each.held.values()), each.charged) for each in self.references]
        assert balance == Balance(*known[0], *known[1], *known[2][::2], *known[3][::2])
        sums = (
            sum_of(entries, name) for name in ("epsilon_nano", "delta_atto", "shuffled_nano", "shuffled_delta_atto")
        )
        epsilon, delta, shuffled_epsilon, shuffled_delta = sums
        assert balance == Balance(*epsilon, *delta, *shuffled_epsilon[::2], *shuffled_delta[::2])
        assert [told(entry) for entry in entries] == self.done
        assert (checked.ok, checked.n_entries) == (True, len(self.done))


def told(entry: LedgerEntry) -> tuple[str, Given, str, str | None]:
    amounts = (entry.epsilon_nano, entry.delta_atto, entry.shuffled_nano, entry.shuffled_delta_atto)
    return entry.kind, amounts, entry.reference, entry.reservation


def sum_of(entries: list[LedgerEntry], amount: str) -> tuple[int, int, int]:
    def total(kind: str, *, reserved: bool = False) -> int:
        return sum(
            getattr(e, amount) for e in entries if e.kind == kind and (e.reservation is not None or not reserved)
        )

    held = total("reserve") - total("release") - total("charge", reserved=True)
    return total("grant"), held, total("charge")


class TestAgainstAReference:
    def test_any_sequence_of_charges_retries_and_rollbacks_matches_the_reference(self, world: World) -> None:
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


class TestBudget:
    def test_budget_for_ten_jobs_admits_ten_of_200_concurrent_jobs(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10 * NANO)

        outcomes = together([lambda: world.submit(dataset, epsilon_nano=NANO)] * 200)

        assert sum(isinstance(outcome, Job) for outcome in outcomes) == 10
        assert {type(outcome) for outcome in outcomes} == {Job, BudgetExhausted}
        assert world.balance(dataset.id) == Balance(10 * NANO, 10 * NANO, 0)
        assert world.read(ledger.verify, dataset.id).n_entries == 11

    def test_concurrent_entries_of_every_kind_that_fit_are_accepted(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=20)

        def spend(i: int) -> str:
            with world.database.transaction() as session:
                if i % 2:
                    charge(session, dataset.id, "charge", 1, f"rnd_{i}", None)
                else:
                    charge(session, dataset.id, "reserve", 1, f"job_{i}", None)
            return "served"

        outcomes = together([partial(spend, i) for i in range(40)])

        assert sorted(str(type(each).__name__) for each in outcomes) == ["BudgetExhausted"] * 20 + ["str"] * 20
        balance = world.balance(dataset.id)
        assert balance.reserved_nano + balance.charged_nano == 20

    @on_sqlite  # it locks the whole file
    def test_two_processes_do_not_overspend(self, world: World, database_url: str) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        script = (
            "import sys; from models.database.engine import Database; from tests.models.world import spend_all\n"
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

    def test_rejected_reservation_names_the_amounts_and_reserves_nothing(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=3 * NANO)
        world.submit(dataset, epsilon_nano=2 * NANO)

        with pytest.raises(BudgetExhausted) as refused:
            world.submit(dataset, epsilon_nano=NANO + 1)

        error = refused.value
        amounts = (error.requested, error.granted, error.reserved, error.charged)
        assert (error.short, amounts) == ("epsilon", (NANO + 1, 3 * NANO, 2 * NANO, 0))
        (_, reserve) = world.read(ledger.page, dataset.id, after_seq=0, limit=10)
        assert error.entries == (reserve.id,)
        assert "1.000000001" in str(error)

    def test_job_cannot_charge_the_reservation_of_another(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        small, _large = (world.submit(dataset, epsilon_nano=amount) for amount in (2, 8))

        with pytest.raises(BudgetExhausted), world.database.transaction() as session:
            charge(session, dataset.id, "charge", 3, "rnd_x", small.id)

    def test_database_rejects_an_overspending_entry(self, world: World) -> None:
        dataset = world.new_dataset(epsilon_nano=10)
        forged = {"epsilon_nano": 11, "granted_nano": 10, "reserved_nano": 0, "charged_nano": 11}

        with pytest.raises(DBAPIError, match="never_over"), world.database.transaction() as session:
            session.add(
                LedgerEntry(
                    id="led_forged",
                    dataset_id=dataset.id,
                    seq=2,
                    kind="charge",
                    reference="rnd_x",
                    reservation=None,
                    actor=ACTOR,
                    at=NOW,
                    prev_hash=GENESIS_HASH,
                    hash=GENESIS_HASH,
                    delta_atto=0,
                    granted_delta_atto=0,
                    reserved_delta_atto=0,
                    charged_delta_atto=0,
                    **{name: 0 for name in COLUMNS if "shuffled" in name},
                    **forged,
                )
            )

    def test_missing_ledger_raises_not_found(self, world: World) -> None:
        with world.database.transaction() as session:
            with pytest.raises(NotFound):
                charge(session, "ds_unknown", "grant", 1, "ref", None)
            with pytest.raises(NotFound):
                ledger.verify(session, "ds_unknown")
            with pytest.raises(NotFound):
                ledger.head(session, "ds_unknown")

    def test_all_ledgers_are_listed(self, world: World) -> None:
        made = sorted(world.new_dataset().id for _ in range(3))

        assert world.read(ledger.dataset_ids) == made
