"""Gaussian accounting in the ledger: what is allowed, what is stored and hashed, and the switch from additive."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic import command
from sqlalchemy import column, insert, table, text
from sqlalchemy.exc import DBAPIError

from models import datasets, hash_chain, maintenance
from models.database import schema
from models.database.engine import Database
from models.errors import BudgetExhausted, CeilingExceeded, Conflict
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset, Trust
from models.tables.ledger import Ceiling, LedgerEntry
from sfumato.errors import InvalidSpec
from sfumato.privacy import ledger as published
from sfumato.privacy.accountant import charge_mu2, limit_mu2, most_mu2
from sfumato.privacy.accounting import NANO, parse_delta
from sfumato.privacy.gaussian_privacy import epsilon_of
from tests.databases import on_sqlite
from tests.models.world import NOW, World, together

MICRO = parse_delta("1e-6")
JOB = Amounts(NANO // 5, MICRO // 100, mu2_pico=charge_mu2(NANO // 5, MICRO // 100))
COMMON: dict[str, Any] = {"actor": "key_test", "now": NOW}


def new_dataset(world: World, **other: Any) -> Dataset:
    given = {"epsilon_nano": 2 * NANO, "delta_atto": MICRO, "accounting": "gaussian", **other}
    return world.new_dataset(trust=Trust.CENTRAL, **given)


def reserve(world: World, within: Dataset, amounts: Amounts, name: str, **other: Any) -> LedgerEntry:
    return world.write(ledger.reserve, within.id, amounts, job_id=name, **COMMON, **other)


def run_job(world: World, within: Dataset, amounts: Amounts, name: str) -> None:
    reserve(world, within, amounts, name)
    world.write(ledger.charge, within.id, amounts, reference=f"{name}#0", reservation=name, **COMMON)


def read_published(world: World, within: Dataset) -> tuple[list[published.LedgerEntry], published.Head]:
    rows = world.read(ledger.page, within.id, after_seq=0, limit=1000)
    names = [name for name in published.LedgerEntry.__slots__ if name != "at"]
    entries = [
        published.LedgerEntry(
            **{name: getattr(row, name) for name in names},
            at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.at),
        )
        for row in rows
    ]
    end = world.read(ledger.head, within.id)
    return entries, published.Head(end.seq, end.hash)


def assert_valid(world: World, within: Dataset) -> None:
    assert world.read(ledger.verify, within.id).ok
    entries, end = read_published(world, within)
    balance = world.balance(within.id)
    found = published.verify(entries, within.id, [end], published.Balance(*balance))
    assert (found.ok, found.balance) == (True, balance)


@on_sqlite
class TestBudget:
    def test_allows_as_many_blocks_as_their_mu2_fit(self, world: World) -> None:
        within = new_dataset(world)
        n = limit_mu2(2 * NANO, MICRO) // JOB.mu2_pico
        assert n >= 106
        for i in range(n):
            run_job(world, within, JOB, f"job_{i}")
        with pytest.raises(BudgetExhausted) as refused:
            reserve(world, within, JOB, "job_more")
        assert refused.value.short == "mu2"
        assert world.balance(within.id).charged_nano == n * JOB.epsilon_nano > 20 * NANO
        assert_valid(world, within)

    def test_a_verification_states_what_the_charges_certify(self, world: World) -> None:
        within = new_dataset(world)
        for i in range(3):
            run_job(world, within, JOB, f"job_{i}")
        entries, end = read_published(world, within)
        found = published.verify(entries, within.id, [end])
        assert found.certified_epsilon == epsilon_of(3 * JOB.mu2_pico, MICRO) / NANO < 0.6
        assert found.certified_delta == 1e-6
        missing = published.verify(entries[:-1], within.id, [end])
        assert (missing.broken_at, missing.balance.charged_mu2_pico) == (end.seq, 2 * JOB.mu2_pico)
        changed = [*entries[:-1], replace(entries[-1], epsilon_nano=1)]
        assert published.verify(changed, within.id, [end]).balance == missing.balance

    def test_allows_pure_charges_up_to_epsilon(self, world: World) -> None:
        within = new_dataset(world)
        for i in range(2):
            run_job(world, within, Amounts(NANO), f"job_{i}")
        with pytest.raises(BudgetExhausted):
            reserve(world, within, Amounts(1), "job_more")
        with pytest.raises(BudgetExhausted):
            reserve(world, within, JOB, "job_block")
        assert_valid(world, within)

    def test_reservations_count(self, world: World) -> None:
        within = new_dataset(world)
        reserve(world, within, Amounts(2 * NANO, MICRO, mu2_pico=limit_mu2(2 * NANO, MICRO)), "job_a")
        with pytest.raises(BudgetExhausted):
            reserve(world, within, Amounts(1), "job_b")
        world.write(ledger.release, within.id, job_id="job_a", **COMMON)
        reserve(world, within, Amounts(2 * NANO), "job_b")
        with pytest.raises(BudgetExhausted):
            reserve(world, within, JOB, "job_c")
        assert_valid(world, within)

    def test_a_job_counts_at_most_what_it_reserved(self, world: World) -> None:
        within = new_dataset(world)
        reserve(world, within, JOB, "job_a")
        pure = Amounts(JOB.epsilon_nano)
        with pytest.raises(BudgetExhausted) as refused:
            world.write(ledger.charge, within.id, pure, reference="job_a#0", reservation="job_a", **COMMON)
        assert refused.value.short == "mu2"

    def test_by_default_a_job_reserves_the_most_it_can_count(self, world: World) -> None:
        within = new_dataset(world)
        amounts = Amounts(NANO // 10, MICRO // 100)
        assert reserve(world, within, amounts, "job_a").mu2_pico == most_mu2(*amounts[:2])
        pure = Amounts(NANO // 10)
        world.write(ledger.charge, within.id, pure, reference="job_a#0", reservation="job_a", **COMMON)
        assert_valid(world, within)

    def test_concurrent_jobs_never_exceed_it(self, world: World) -> None:
        within = new_dataset(world, epsilon_nano=NANO // 2)
        n = limit_mu2(NANO // 2, MICRO) // JOB.mu2_pico

        def run(name: str) -> int:
            for i in range(n):
                try:
                    run_job(world, within, JOB, f"{name}_{i}")
                except BudgetExhausted:
                    return i
            return n

        assert sum(together([lambda: run("a"), lambda: run("b")])) == n
        assert_valid(world, within)

    def test_closing_leaves_nothing(self, world: World) -> None:
        for amounts in (None, Amounts(NANO), JOB):
            within = new_dataset(world)
            if amounts is not None:
                run_job(world, within, amounts, "job_a")
            world.write(maintenance.close_budget, within.id, now=NOW)
            for more in (Amounts(1000), JOB):
                with pytest.raises(BudgetExhausted):
                    reserve(world, within, more, "job_b")
            assert_valid(world, within)


@on_sqlite
class TestCreation:
    @pytest.mark.parametrize(
        ("amounts", "why"),
        [({"delta_atto": 0}, "needs a delta"), ({"epsilon_nano": 1000, "delta_atto": 1000}, "too small")],
    )
    def test_needs_a_delta_that_covers_something(self, world: World, amounts: dict[str, int], why: str) -> None:
        with pytest.raises(InvalidSpec, match=why):
            new_dataset(world, **amounts)


@on_sqlite
class TestSwitch:
    def additive(self, world: World) -> Dataset:
        within = new_dataset(world, accounting="additive")
        for i in range(3):
            run_job(world, within, JOB, f"job_{i}")
        run_job(world, within, Amounts(NANO // 20), "job_pure")
        return within

    def test_counts_all_earlier_charges(self, world: World) -> None:
        within = self.additive(world)
        assert world.balance(within.id).charged_mu2_pico is None
        changed = world.write(datasets.switch_to_gaussian, world.caller, within.id, now=NOW)
        assert changed.accounting == "gaussian"
        after = world.balance(within.id)
        assert after.charged_mu2_pico == 3 * JOB.mu2_pico + charge_mu2(NANO // 20, 0)
        run_job(world, within, JOB, "job_after")
        assert_valid(world, within)
        with pytest.raises(Conflict, match="already"):
            world.write(datasets.switch_to_gaussian, world.caller, within.id, now=NOW)

    def test_is_refused_during_a_reservation(self, world: World) -> None:
        within = self.additive(world)
        reserve(world, within, JOB, "job_open")
        with pytest.raises(Conflict, match="reservation"):
            world.write(datasets.switch_to_gaussian, world.caller, within.id, now=NOW)
        assert world.balance(within.id).accounting == "additive"

    def test_additive_entries_hash_as_before_the_new_members(self, world: World) -> None:
        within = self.additive(world)
        entries, _ = read_published(world, within)
        for entry in entries:
            assert entry.mu2_pico is None
            assert entry.computed_hash() == entry.hash
            assert replace(entry, mu2_pico=0).computed_hash() != entry.hash


@on_sqlite
class TestVerify:
    def forged(self, world: World, within: Dataset, **values: Any) -> published.Verification:
        """Return the verification of a chain with other values in its last entry, and a hash that matches."""
        entries, _ = read_published(world, within)
        last = replace(entries[-1], **values)
        last = replace(last, hash=last.computed_hash())
        return published.verify([*entries[:-1], last], within.id, [published.Head(last.seq, last.hash)])

    def test_detects_a_charge_that_counts_too_little(self, world: World) -> None:
        within = new_dataset(world)
        run_job(world, within, JOB, "job_a")
        less = {"mu2_pico": JOB.mu2_pico - 1, "reserved_mu2_pico": 1, "charged_mu2_pico": JOB.mu2_pico - 1}
        found = self.forged(world, within, **less)
        assert (found.broken_at, found.reason) == (3, "an entry counts another mu^2 than it costs")

    def test_detects_a_way_back(self, world: World) -> None:
        within = new_dataset(world)
        run_job(world, within, JOB, "job_a")
        found = self.forged(world, within, **dict.fromkeys(published.MU2_MEMBERS))
        assert (found.broken_at, found.reason) == (3, "the accounting changed without an entry")

    def test_the_service_detects_both(self, world: World) -> None:
        within = new_dataset(world)
        reserve(world, within, JOB, "job_a")
        (last,) = world.read(ledger.page, within.id, after_seq=1, limit=1)
        amounts = JOB._replace(mu2_pico=JOB.mu2_pico - 1)
        after = world.balance(within.id).after(ledger.Kind.CHARGE, amounts, "job_a")
        columns = {each.key: getattr(last, each.key) for each in LedgerEntry.__table__.columns}
        columns |= {"id": "led_forged", "seq": 3, "kind": "charge", "reference": "x", "prev_hash": last.hash}
        forged = LedgerEntry(**columns | amounts._asdict() | after._asdict())
        forged.hash = hash_chain.hash_entry(forged)
        with world.database.transaction() as session:
            session.add(forged)
            end = session.get_one(ledger.LedgerHead, within.id)
            end.seq, end.hash = 3, forged.hash
        assert world.read(ledger.verify, within.id).reason == "an entry counts another mu^2 than it costs"


class TestDatabaseChecks:
    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"charged_mu2_pico": 1, "charged_nano": 3 * NANO}, "never_over"),
            ({"charged_mu2_pico": 1, "charged_delta_atto": 1}, "never_over"),
            ({"granted_mu2_pico": None}, "not_negative_mu2"),
            ({"charged_mu2_pico": None, "charged_nano": 3 * NANO}, "not_negative_mu2"),
            ({"reserved_mu2_pico": -1}, "not_negative_mu2"),
        ],
    )
    def test_the_database_refuses(self, world: World, values: dict[str, int | None], why: str) -> None:
        within = new_dataset(world)
        (row,) = world.read(ledger.page, within.id, after_seq=0, limit=1)
        columns = {each.key: getattr(row, each.key) for each in LedgerEntry.__table__.columns}
        columns |= {"id": "led_forged", "seq": 2, "kind": "charge", "reference": "x", "granted_mu2_pico": 0}
        with pytest.raises(DBAPIError, match=why), world.database.transaction() as session:
            session.execute(insert(LedgerEntry).values(columns | values))


@on_sqlite
class TestSource:
    def test_gaussian_datasets_share_one_gaussian_ceiling(self, world: World) -> None:
        ceiling = Ceiling(NANO // 2, MICRO)
        n = limit_mu2(NANO // 2, MICRO) // JOB.mu2_pico
        within = [new_dataset(world, source="ward-1") for _ in range(2)]
        assert n > 3
        for i in range(n):
            reserve(world, within[i % 2], JOB, f"job_{i}", ceiling=ceiling)
        with pytest.raises(CeilingExceeded) as refused:
            reserve(world, within[0], JOB, "job_more", ceiling=ceiling)
        assert (refused.value.ceiling, refused.value.short) == ("source", "mu2")

    def test_with_an_additive_dataset_costs_add_up(self, world: World) -> None:
        within = new_dataset(world, source="ward-1")
        other = new_dataset(world, source="ward-1", accounting="additive")
        ceiling = Ceiling(NANO // 2, MICRO)
        reserve(world, other, JOB, "job_other", ceiling=ceiling)
        reserve(world, within, JOB, "job_0", ceiling=ceiling)
        with pytest.raises(CeilingExceeded) as refused:
            reserve(world, within, JOB, "job_more", ceiling=ceiling)
        assert refused.value.short == "epsilon"

    def test_an_additive_dataset_without_costs_counts_when_it_spends(self, world: World) -> None:
        within = new_dataset(world, source="ward-1")
        other = new_dataset(world, source="ward-1", accounting="additive")
        ceiling = Ceiling(NANO // 2, MICRO)
        for i in range(3):  # their sum is above the ceiling
            reserve(world, within, JOB, f"job_{i}", ceiling=ceiling)
        with pytest.raises(CeilingExceeded) as refused:
            reserve(world, other, JOB, "job_other", ceiling=ceiling)
        assert refused.value.short == "epsilon"


class TestMigration:
    def test_a_chain_of_the_first_schema_verifies_and_continues(self, empty_database_url: str) -> None:
        """The entries are hashed here by the first rule: all columns of the first schema."""
        database = Database(empty_database_url)
        config = schema._alembic(empty_database_url)
        config.attributes["engine"] = database.engine
        command.upgrade(config, "0001")
        amounts = [("grant", 2 * NANO, MICRO, (2 * NANO, 0, 0), (MICRO, 0, 0), None)]
        amounts += [("reserve", NANO // 5, 7, (2 * NANO, NANO // 5, 0), (MICRO, 7, 0), "job_1")]
        amounts += [("charge", NANO // 5, 0, (2 * NANO, 0, NANO // 5), (MICRO, 7, 0), "job_1")]
        previous = published.GENESIS_HASH
        with database.transaction() as session:
            session.execute(text("INSERT INTO ledger_heads VALUES ('ds_old', 0, '')"))
            for seq, (kind, nano, atto, epsilon, delta, job) in enumerate(amounts, start=1):
                values: dict[str, Any] = {"id": f"led_{seq}", "dataset_id": "ds_old", "seq": seq, "kind": kind}
                values |= {"epsilon_nano": nano, "delta_atto": atto, "reference": f"of_{seq}", "reservation": job}
                values |= {"actor": "key_test", "at": NOW, "prev_hash": previous}
                names = ("granted", "reserved", "charged")
                values |= {f"{name}_nano": value for name, value in zip(names, epsilon, strict=True)}
                values |= {f"{name}_delta_atto": value for name, value in zip(names, delta, strict=True)}
                values |= dict.fromkeys(SHUFFLED, 0)
                canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
                previous = values["hash"] = hashlib.sha256(canonical.encode()).hexdigest()
                session.execute(insert(OLD_ENTRIES).values(values))
            session.execute(text("UPDATE ledger_heads SET seq = 3, hash = :hash"), {"hash": previous})
            session.execute(text("INSERT INTO ledger_reservations VALUES ('ds_old', 'job_1', 0, 7)"))
        schema.migrate(empty_database_url)
        with database.transaction() as session:
            assert ledger.verify(session, "ds_old").ok
            ledger.release(session, "ds_old", job_id="job_1", **COMMON)
            ledger.switch_to_gaussian(session, "ds_old", **COMMON)
            ledger.reserve(session, "ds_old", JOB, job_id="job_2", **COMMON)
        with database.reading() as session:
            assert ledger.verify(session, "ds_old").ok
            assert ledger.balance(session, "ds_old").charged_mu2_pico == charge_mu2(NANO // 5, 0)
        with pytest.raises(DBAPIError, match="append-only"), database.transaction() as session:
            session.execute(text("DELETE FROM ledger_entries"))
        database.close()


OLD_ENTRIES = table("ledger_entries", *(column(each) for each in LedgerEntry.__table__.columns.keys()))  # noqa: SIM118 - of SQLAlchemy
SHUFFLED = [name for name in published.LedgerEntry.__slots__ if "shuffled" in name]
