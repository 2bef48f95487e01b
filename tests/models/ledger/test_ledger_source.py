"""Ceilings: what keys may grant to a dataset, and what all datasets of a source may spend together."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from models import datasets, maintenance
from models.errors import BudgetExhausted, CeilingExceeded
from models.identity import audit_trail
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset, Trust
from models.tables.jobs import Job
from models.tables.ledger import Ceiling
from models.tables.rounds import Round
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.settings import Shuffler
from tests.databases import on_sqlite
from tests.models.world import NOW, World, together

CEILING = Ceiling(60, 40)
SOURCES = st.sampled_from([None, "ward-1", "ward-2"])
AMOUNTS = st.tuples(st.integers(0, 40), st.one_of(st.just(0), st.integers(0, 30)))
INDEX = st.integers(0, 1_000)


@dataclass
class Spent:
    """Amounts of a dataset in plain numbers."""

    id: str
    source: str | None
    granted: tuple[int, int]
    charged: list[int] = field(default_factory=lambda: [0, 0])
    held: dict[str, list[int]] = field(default_factory=dict)

    @property
    def spent(self) -> list[int]:
        return [self.charged[i] + sum(held[i] for held in self.held.values()) for i in (0, 1)]


def to_ledger(epsilon_nano: int, delta_atto: int) -> sources.Spent:
    """Return amounts without shuffled epsilon. Additive charges have no mu squared."""
    mu2 = None if epsilon_nano or delta_atto else 0
    return sources.Spent(epsilon_nano, 0, delta_atto, mu2, mu2)


class SourceMachine(RuleBasedStateMachine):
    """Datasets of few sources with reservations, charges, relabellings and deletions in any order."""

    world: World  # set by the test

    @initialize(source=SOURCES)
    def begin(self, source: str | None) -> None:
        self.world.caller = self.world.new_caller(f"tenant {id(self)} {self.world.now}")
        self.world.now += 1
        self.all: list[Spent] = []
        self.live: list[Spent] = []
        self.number = 0
        self.create(source)

    @rule(source=SOURCES)
    def create(self, source: str | None) -> None:
        made = self.world.new_dataset(epsilon_nano=50, delta_atto=30, trust=Trust.CENTRAL, source=source)
        self.all.append(Spent(made.id, source, (50, 30)))
        self.live.append(self.all[-1])

    @rule(index=INDEX)
    def delete(self, index: int) -> None:
        if len(self.live) > 1:
            gone = self.live.pop(index % len(self.live))
            self.world.write(maintenance.delete_dataset, self.world.caller, gone.id, now=NOW)

    @rule(index=INDEX, source=SOURCES)
    def relabel(self, index: int, source: str | None) -> None:
        if source is not None:
            which = self.live[index % len(self.live)]
            self.world.write(datasets.set_source, self.world.caller, which.id, source, now=NOW)
            which.source = source

    @rule(index=INDEX, amounts=AMOUNTS, reserve=st.booleans())
    def spend(self, index: int, amounts: tuple[int, int], reserve: bool) -> None:
        which = self.live[index % len(self.live)]
        self.number += 1
        reference = f"ref_{self.number}"
        given: dict[str, Any] = {"actor": "key_test", "now": NOW, "ceiling": CEILING}
        got: type[Exception] | None = None
        try:
            with self.world.database.transaction() as session:
                if reserve:
                    ledger.reserve(session, which.id, Amounts(*amounts), job_id=reference, **given)
                else:
                    ledger.charge(session, which.id, Amounts(*amounts), reference=reference, reservation=None, **given)
        except (BudgetExhausted, CeilingExceeded) as error:
            got = type(error)
        assert got is self.refusal(which, amounts)
        if got is None and reserve:
            which.held[reference] = list(amounts)
        elif got is None:
            which.charged = [before + more for before, more in zip(which.charged, amounts, strict=True)]

    def refusal(self, which: Spent, amounts: tuple[int, int]) -> type[Exception] | None:
        """Return the expected error."""
        if any(which.spent[i] + amounts[i] > which.granted[i] for i in (0, 1)):
            return BudgetExhausted
        limits = (CEILING.epsilon_nano or 0, CEILING.delta_atto or 0)
        if any(amounts[i] and self.total(which.source)[i] + amounts[i] > limits[i] for i in (0, 1)):
            return CeilingExceeded
        return None

    @rule(index=INDEX, share=st.integers(0, 4))
    def charge_a_reservation_and_release_the_rest(self, index: int, share: int) -> None:
        held = [(which, job_id) for which in self.all for job_id in which.held]
        if held:
            which, job_id = held[index % len(held)]
            part = [amount * share // 4 for amount in which.held.pop(job_id)]
            with self.world.database.transaction() as session:
                given = {"reference": f"{job_id}#0", "reservation": job_id, "actor": "key_test", "now": NOW}
                ledger.charge(session, which.id, Amounts(*part), ceiling=CEILING, **given)  # type: ignore[arg-type]
                ledger.release(session, which.id, job_id=job_id, actor="key_test", now=NOW)
            which.charged = [before + more for before, more in zip(which.charged, part, strict=True)]

    def total(self, source: str | None) -> list[int]:
        """Return what the datasets of the source spend, deleted ones included."""
        return [sum(each.spent[i] for each in self.all if each.source == source) for i in (0, 1)]

    @invariant()
    def sums_agree(self) -> None:
        with self.world.database.reading() as session:
            for each in self.all:
                assert sources.spent_of_source(session, each.id) == to_ledger(*self.total(each.source))


class TestAgainstAReference:
    @pytest.mark.slow
    def test_any_sequence_of_charges_and_relabellings_matches_the_reference(self, world: World) -> None:
        class Machine(SourceMachine):
            pass

        Machine.world = world
        quick = settings(
            max_examples=6,
            stateful_step_count=15,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        run_state_machine_as_test(Machine, settings=quick)


@on_sqlite
class TestShuffledAmounts:
    """Both epsilons have the same ceiling each, and the deltas of both grants have one together."""

    ceiling = Ceiling(NANO, 40)

    def shuffled(self, world: World, pair: tuple[int, int] = (5 * NANO, 100), **given: Any) -> Dataset:
        shuffler = Shuffler("s", "https://shuffler.example", "")
        return world.new_dataset(trust=Trust.SHUFFLED, shuffled=pair, shuffler=shuffler, **given)

    @pytest.mark.parametrize(
        ("pair", "short"), [((NANO + 1, 40), "shuffled_epsilon"), ((NANO, 41), "shuffled_delta"), ((NANO, 40), None)]
    )
    def test_of_a_grant_are_limited(self, world: World, pair: tuple[int, int], short: str | None) -> None:
        if short is None:
            made = self.shuffled(world, pair, epsilon_nano=NANO, ceiling=self.ceiling)
            with pytest.raises(CeilingExceeded) as refused:
                world.write(
                    datasets.grant,
                    world.caller,
                    made.id,
                    epsilon_nano=0,
                    delta_atto=0,
                    shuffled=(0, 1),
                    now=NOW,
                    ceiling=self.ceiling,
                )
            assert (refused.value.ceiling, refused.value.short) == ("dataset", "shuffled_delta")
            return
        with pytest.raises(CeilingExceeded) as refused:
            self.shuffled(world, pair, epsilon_nano=NANO, ceiling=self.ceiling)
        assert (refused.value.ceiling, refused.value.short, refused.value.spent) == ("dataset", short, 0)

    @pytest.mark.parametrize("is_reserved", [False, True])
    def test_of_charges_are_limited_over_a_source(self, world: World, is_reserved: bool) -> None:
        """A central dataset of the same source has spent a part of the delta."""
        central = world.new_dataset(trust=Trust.CENTRAL, delta_atto=100, source="ward-1")
        given: dict[str, Any] = {"actor": "k", "now": NOW, "ceiling": self.ceiling}
        with world.database.transaction() as session:
            ledger.charge(session, central.id, Amounts(0, 25), reference="c", reservation=None, **given)
        for name, pair, short in (
            ("a", (NANO // 2, 10), None),
            ("b", (NANO // 2, 6), "shuffled_delta"),
            ("c", (NANO // 2 + 1, 5), "shuffled_epsilon"),
            ("d", (NANO // 2, 5), None),
            ("e", (0, 1), "shuffled_delta"),
        ):
            made = self.shuffled(world, source="ward-1")  # a new dataset has no new budget
            with world.database.transaction() as session:
                job_id = f"job_{name}" if is_reserved else None
                if job_id is not None:
                    ledger.reserve(session, made.id, Amounts(NANO // 10), job_id=job_id, **given)
                amounts = Amounts(NANO // 10, 0, *pair)
                charge = partial(ledger.charge, session, made.id, amounts, reference=name, reservation=job_id)
                if short is None:
                    charge(**given)
                    continue
                with pytest.raises(CeilingExceeded) as refused:
                    charge(**given)
                assert (refused.value.ceiling, refused.value.short) == ("source", short)
        with world.database.reading() as session:
            spent = sources.spent_of_source(session, central.id)
        assert spent[1:3] == (NANO, 40)


class TestSource:
    @pytest.mark.slow
    def test_ceiling_for_ten_jobs_admits_ten_of_80_concurrent_jobs_of_four_datasets(self, world: World) -> None:
        made = [world.new_dataset(source="ward-1") for _ in range(4)]
        elsewhere = world.new_dataset(source="ward-2")
        ceiling = Ceiling(10 * NANO)

        def submit(i: int) -> Job:
            return world.submit(made[i % 4], epsilon_nano=NANO, ceiling=ceiling)

        outcomes = together([lambda i=i: submit(i) for i in range(80)])

        assert sum(isinstance(outcome, Job) for outcome in outcomes) == 10
        assert {type(outcome) for outcome in outcomes} == {Job, CeilingExceeded}
        assert world.read(sources.spent_of_source, made[0].id) == to_ledger(10 * NANO, 0)
        assert world.submit(elsewhere, epsilon_nano=10 * NANO, ceiling=ceiling).epsilon_nano == 10 * NANO

    def test_jobs_rounds_and_relabellings_at_once_do_not_deadlock(self, world: World) -> None:
        made = [world.new_dataset(source=f"ward-{i % 2}") for i in range(4)]
        ceiling = Ceiling(100 * NANO)

        def act(i: int) -> object:
            which = made[i % 4]
            if i % 3 == 0:
                return world.submit(which, ceiling=ceiling)
            if i % 3 == 1:
                return world.open_standalone(which, ceiling=ceiling)
            return world.write(datasets.set_source, world.caller, which.id, f"ward-{i % 5}", now=NOW)

        outcomes = together([lambda i=i: act(i) for i in range(24)])

        assert {type(outcome) for outcome in outcomes} == {Job, Round, Dataset}

    def test_a_new_dataset_has_no_new_budget(self, world: World) -> None:
        ceiling = Ceiling(3 * NANO)
        for source in ("ward-1", None):  # all datasets without a label are one source
            first = world.new_dataset(source=source)
            world.submit(first, epsilon_nano=2 * NANO, ceiling=ceiling)
            world.submit(first, epsilon_nano=NANO, ceiling=ceiling)
            with world.database.transaction() as session:
                ledger.charge(session, first.id, Amounts(NANO), reference="r", reservation=None, actor="k", now=NOW)
            world.write(maintenance.delete_dataset, world.caller, first.id, now=NOW)  # releases the reservations
            second = world.new_dataset(source=source)
            world.open_standalone(second, epsilon_nano=2 * NANO, ceiling=ceiling)

            for begin in (world.submit, world.open_standalone):
                with pytest.raises(CeilingExceeded) as refused:
                    begin(second, epsilon_nano=NANO, ceiling=ceiling)

                error = refused.value
                assert (error.ceiling, error.short, error.limit) == ("source", "epsilon", 3 * NANO)
                assert 2.99 * NANO < error.spent <= 3 * NANO

    @on_sqlite
    def test_delta_has_a_ceiling_too(self, world: World) -> None:
        first, second = (world.new_dataset(trust=Trust.CENTRAL, delta_atto=100, source="ward-1") for _ in range(2))
        ceiling = Ceiling(None, 100)
        world.submit(first, delta_atto=60, ceiling=ceiling)

        with pytest.raises(CeilingExceeded, match="6e-17 is charged or reserved") as refused:
            world.submit(second, delta_atto=41, ceiling=ceiling)

        assert (refused.value.short, refused.value.spent, refused.value.requested) == ("delta", 60, 41)
        world.submit(second, delta_atto=40, ceiling=ceiling)
        world.submit(second, ceiling=ceiling)  # needs none

    @on_sqlite
    def test_setting_a_source_is_an_audit_event(self, world: World) -> None:
        labelled = world.new_dataset(source="ward-1")
        changed = world.new_dataset()
        for source in ("ward-1", "ward-1", "ward-2"):
            world.write(datasets.set_source, world.caller, changed.id, source, now=NOW)

        with world.database.reading() as session:
            events = audit_trail.page(session, world.caller.tenant_id, limit=100, act="source.set")
        assert [(event.subject_id, event.details) for event in events] == [
            (labelled.id, {"before": None, "source": "ward-1"}),
            (changed.id, {"before": None, "source": "ward-1"}),
            (changed.id, {"before": "ward-1", "source": "ward-2"}),
        ]

    @on_sqlite
    @pytest.mark.parametrize("label", ["", " ward", "ward ", "wárd", "a" * 65, "-a", "a\u200b", "a\n"])
    def test_labels_that_look_alike_are_rejected(self, world: World, label: str) -> None:
        made = world.new_dataset()

        with pytest.raises(InvalidSpec, match="1 to 64 letters"):
            world.write(datasets.set_source, world.caller, made.id, label, now=NOW)


@on_sqlite
class TestGrants:
    def test_of_a_dataset_do_not_exceed_the_ceiling(self, world: World) -> None:
        ceiling = Ceiling(5, 7)
        with pytest.raises(CeilingExceeded) as refused:
            world.new_dataset(epsilon_nano=6, ceiling=ceiling)
        assert (refused.value.ceiling, refused.value.limit, refused.value.spent) == ("dataset", 5, 0)
        made = world.new_dataset(epsilon_nano=3, trust=Trust.CENTRAL, ceiling=ceiling)

        for epsilon_nano, delta_atto, short in ((3, 0, "epsilon"), (0, 8, "delta")):
            with pytest.raises(CeilingExceeded) as refused:
                world.write(
                    datasets.grant,
                    world.caller,
                    made.id,
                    epsilon_nano=epsilon_nano,
                    delta_atto=delta_atto,
                    ceiling=ceiling,
                    now=NOW,
                )
            assert refused.value.short == short

        amounts = {"epsilon_nano": 2, "delta_atto": 7}
        world.write(datasets.grant, world.caller, made.id, **amounts, ceiling=ceiling, now=NOW)
        assert world.balance(made.id)[:6:3] == (5, 7)
