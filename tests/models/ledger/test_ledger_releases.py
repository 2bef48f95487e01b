"""Gaussian accounting of shuffled rounds in the ledger: what is allowed, stored, verified and shared by a source."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from models import datasets, hash_chain, maintenance
from models.errors import BudgetExhausted, CeilingExceeded, Conflict
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset, Trust
from models.tables.ledger import Ceiling, LedgerEntry
from sfumato.errors import InvalidSpec
from sfumato.privacy import ledger as published
from sfumato.privacy.accountant import limit_release_mu2
from sfumato.privacy.accounting import NANO, parse_delta
from sfumato.privacy.gaussian_privacy import epsilon_of
from sfumato.settings import Shuffler
from tests.databases import on_sqlite
from tests.models.ledger.test_gaussian_ledger import assert_valid, read_published
from tests.models.world import NOW, World, together

MICRO = parse_delta("1e-6")
SHUFFLER = Shuffler("s", "https://shuffler.example", "")
GRANT = (4 * NANO, 104 * MICRO)
ROUND = Amounts(NANO // 10, 0, NANO // 2, MICRO, 16_016_000_000)  # about epsilon .5 of 100,000 honest reports
COMMON: dict[str, Any] = {"actor": "key_test", "now": NOW}
MISCOUNTED = "an entry counts another mu^2 than it costs"


def new_dataset(world: World, **other: Any) -> Dataset:
    given = {"epsilon_nano": 30 * NANO, "shuffled": GRANT, "shuffler": SHUFFLER, "accounting": "gaussian", **other}
    return world.new_dataset(trust=Trust.SHUFFLED, **given)


def open_round(world: World, within: Dataset, name: str, amounts: Amounts = ROUND, **other: Any) -> LedgerEntry:
    return world.write(
        ledger.charge, within.id, amounts, reference=name, reservation=other.pop("job", None), **COMMON, **other
    )


def open_rounds(world: World, within: Dataset, n: int, **other: Any) -> None:
    for i in range(n):
        open_round(world, within, f"rnd_{i}", **other)


@on_sqlite
class TestBudget:
    def test_allows_52_rounds_where_additive_accounting_allows_8(self, world: World) -> None:
        within, additive = new_dataset(world), new_dataset(world, accounting="additive")
        open_rounds(world, within, 52)
        with pytest.raises(BudgetExhausted) as refused:
            open_round(world, within, "rnd_more")
        assert (refused.value.short, refused.value.granted) == ("shuffled_delta", 52 * MICRO)
        assert_valid(world, within)
        open_rounds(world, additive, 8)
        with pytest.raises(BudgetExhausted) as refused:
            open_round(world, additive, "rnd_more")
        assert refused.value.short == "shuffled_epsilon"
        assert world.balance(additive.id).charged_mu2_pico is None

    def test_limits_mu2(self, world: World) -> None:
        within = new_dataset(world, shuffled=(NANO, GRANT[1]))
        n = limit_release_mu2(NANO, GRANT[1]) // ROUND.mu2_pico
        assert 2 < n < 20
        open_rounds(world, within, n)
        with pytest.raises(BudgetExhausted) as refused:
            open_round(world, within, "rnd_more")
        assert refused.value.short == "mu2"
        assert_valid(world, within)

    def test_local_epsilons_add_up(self, world: World) -> None:
        within = new_dataset(world, epsilon_nano=NANO // 4)
        open_rounds(world, within, 2)
        with pytest.raises(BudgetExhausted) as refused:
            open_round(world, within, "rnd_more")
        assert refused.value.short == "epsilon"

    def test_a_reservation_covers_the_local_epsilon_alone(self, world: World) -> None:
        within = new_dataset(world)
        reserved = world.write(ledger.reserve, within.id, Amounts(NANO), job_id="job_a", **COMMON)
        assert (reserved.mu2_pico, reserved.reserved_mu2_pico) == (0, 0)
        open_round(world, within, "rnd_a", job="job_a")
        balance = world.balance(within.id)
        assert (balance.reserved_nano, balance.charged_nano) == (NANO - ROUND.epsilon_nano, ROUND.epsilon_nano)
        assert (balance.reserved_mu2_pico, balance.charged_mu2_pico) == (0, ROUND.mu2_pico)
        world.write(ledger.release, within.id, job_id="job_a", **COMMON)
        assert world.balance(within.id).charged_mu2_pico == ROUND.mu2_pico
        assert_valid(world, within)

    def test_a_grant_raises_both_limits(self, world: World) -> None:
        within = new_dataset(world)
        before = world.balance(within.id).granted_mu2_pico or 0
        more = {"epsilon_nano": 0, "delta_atto": 0, "shuffled": (NANO, MICRO)}
        world.write(datasets.grant, world.caller, within.id, **more, now=NOW)
        after = world.balance(within.id).granted_mu2_pico or 0
        assert before < after == limit_release_mu2(5 * NANO, 105 * MICRO)
        assert_valid(world, within)

    def test_a_charge_without_mu2_is_refused(self, world: World) -> None:
        within = new_dataset(world)
        with pytest.raises(Conflict, match="accounting of this dataset has changed"):
            open_round(world, within, "rnd_a", ROUND._replace(mu2_pico=0))
        assert len(world.chain(within.id)) == 1

    def test_concurrent_rounds_never_exceed_it(self, world: World) -> None:
        within = new_dataset(world, shuffled=(NANO, GRANT[1]))
        n = limit_release_mu2(NANO, GRANT[1]) // ROUND.mu2_pico

        def run(name: str) -> int:
            for i in range(n):
                try:
                    open_round(world, within, f"{name}_{i}")
                except BudgetExhausted:
                    return i
            return n

        assert sum(together([lambda: run("a"), lambda: run("b")])) == n
        assert_valid(world, within)

    def test_closing_leaves_nothing(self, world: World) -> None:
        within = new_dataset(world)
        open_rounds(world, within, 2)
        world.write(maintenance.close_budget, within.id, now=NOW)
        for tiny in (Amounts(1), Amounts(0, 0, 1, 1, 1)):
            with pytest.raises(BudgetExhausted):
                open_round(world, within, "rnd_more", tiny)
        assert_valid(world, within)


@on_sqlite
class TestCreation:
    @pytest.mark.parametrize(("shuffled", "why"), [((NANO, 0), "needs a delta"), ((1000, 1000), "too small")])
    def test_needs_a_delta_that_covers_something(self, world: World, shuffled: tuple[int, int], why: str) -> None:
        with pytest.raises(InvalidSpec, match=why):
            new_dataset(world, shuffled=shuffled)


@on_sqlite
class TestSwitch:
    def test_is_possible_before_the_first_round_only(self, world: World) -> None:
        within = new_dataset(world, accounting="additive")
        world.write(datasets.switch_to_gaussian, world.caller, within.id, now=NOW)
        open_rounds(world, within, 9)
        assert_valid(world, within)
        other = new_dataset(world, accounting="additive")
        open_rounds(world, other, 1)
        with pytest.raises(Conflict, match="before the first round"):
            world.write(datasets.switch_to_gaussian, world.caller, other.id, now=NOW)
        assert world.balance(other.id).accounting == "additive"


@on_sqlite
class TestVerify:
    def test_states_what_the_releases_certify(self, world: World) -> None:
        within = new_dataset(world)
        open_rounds(world, within, 10)
        entries, end = read_published(world, within)
        found = published.verify(entries, within.id, [end])
        nano = epsilon_of(10 * ROUND.mu2_pico, 52 * MICRO)
        assert nano is not None
        assert found.certified_shuffled_epsilon == nano / NANO < 1.6
        assert found.certified_epsilon == 1.0  # the local epsilons add up

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"mu2_pico": 0, "charged_mu2_pico": 0}, MISCOUNTED),
            ({"charged_mu2_pico": 1}, "a balance does not add up"),
            ({"granted_mu2_pico": 10**15}, "a balance does not add up"),
            ({"reserved_mu2_pico": 1}, "a balance does not add up"),
            (dict.fromkeys(published.MU2_MEMBERS), "the accounting changed without an entry"),
        ],
    )
    def test_detects_a_forged_charge(self, world: World, values: dict[str, Any], reason: str) -> None:
        within = new_dataset(world)
        open_rounds(world, within, 1)
        entries, _ = read_published(world, within)
        last = replace(entries[-1], **values)
        last = replace(last, hash=last.computed_hash())
        found = published.verify([*entries[:-1], last], within.id, [published.Head(last.seq, last.hash)])
        assert (found.broken_at, found.reason) == (2, reason)

    def test_detects_deltas_above_a_half_of_the_grant(self, world: World) -> None:
        within = new_dataset(world)
        entries, _ = read_published(world, within)
        entry = replace(entries[0], id="led_x", seq=2, kind="charge", reference="x", prev_hash=entries[0].hash)
        amounts = {"shuffled_nano": 1, "shuffled_delta_atto": 52 * MICRO + 1, "mu2_pico": 1, "epsilon_nano": 0}
        charged = {"charged_shuffled_nano": 1, "charged_shuffled_delta_atto": 52 * MICRO + 1, "charged_mu2_pico": 1}
        entry = replace(entry, **amounts, **charged)
        entry = replace(entry, hash=entry.computed_hash())
        found = published.verify([*entries, entry], within.id, [published.Head(2, entry.hash)])
        assert (found.broken_at, found.reason) == (2, "more was spent than granted")

    def test_the_service_detects_an_uncounted_release(self, world: World) -> None:
        within = new_dataset(world)
        (last,) = world.read(ledger.page, within.id, after_seq=0, limit=1)
        amounts = ROUND._replace(mu2_pico=0)
        after = world.balance(within.id).after(ledger.Kind.CHARGE, amounts, None)
        columns = {each.key: getattr(last, each.key) for each in LedgerEntry.__table__.columns}
        columns |= {"id": "led_forged", "seq": 2, "kind": "charge", "reference": "x", "prev_hash": last.hash}
        forged = LedgerEntry(**columns | amounts._asdict() | after._asdict())
        forged.hash = hash_chain.hash_entry(forged)
        with world.database.transaction() as session:
            session.add(forged)
            end = session.get_one(ledger.LedgerHead, within.id)
            end.seq, end.hash = 2, forged.hash
        assert world.read(ledger.verify, within.id).reason == MISCOUNTED


class TestDatabaseChecks:
    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"charged_mu2_pico": 10**15}, "never_over_shuffled"),
            ({"charged_shuffled_delta_atto": 52 * MICRO + 1}, "never_over_shuffled"),
            ({"reserved_mu2_pico": 1}, "never_over_shuffled"),
            ({"charged_nano": 30 * NANO + 1}, "never_over"),
        ],
    )
    def test_the_database_refuses(self, world: World, values: dict[str, int], why: str) -> None:
        within = new_dataset(world)
        (row,) = world.read(ledger.page, within.id, after_seq=0, limit=1)
        columns = {each.key: getattr(row, each.key) for each in LedgerEntry.__table__.columns}
        columns |= {"id": "led_forged", "seq": 2, "kind": "charge", "reference": "x"}
        with pytest.raises(DBAPIError, match=why), world.database.transaction() as session:
            session.execute(insert(LedgerEntry).values(columns | values))


@on_sqlite
class TestSource:
    CEILING = Ceiling(30 * NANO, 104 * MICRO, shuffled_nano=NANO)

    def test_shuffled_datasets_share_one_gaussian_ceiling(self, world: World) -> None:
        n = limit_release_mu2(NANO, 104 * MICRO) // ROUND.mu2_pico
        within = [new_dataset(world, source="ward-1") for _ in range(2)]
        for i in range(n):
            open_round(world, within[i % 2], f"rnd_{i}", ceiling=self.CEILING)
        with pytest.raises(CeilingExceeded) as refused:
            open_round(world, within[0], "rnd_more", ceiling=self.CEILING)
        assert (refused.value.ceiling, refused.value.short) == ("source", "mu2")

    def test_deltas_use_half_of_the_ceiling(self, world: World) -> None:
        within = new_dataset(world, source="ward-1")
        ceiling = Ceiling(30 * NANO, 4 * MICRO)
        for i in range(2):
            open_round(world, within, f"rnd_{i}", ceiling=ceiling)
        with pytest.raises(CeilingExceeded) as refused:
            open_round(world, within, "rnd_more", ceiling=ceiling)
        assert (refused.value.short, refused.value.limit) == ("shuffled_delta", 2 * MICRO)

    @pytest.mark.parametrize("trust", [Trust.SHUFFLED, Trust.CENTRAL])
    def test_beside_other_costs_the_releases_add_up(self, world: World, trust: Trust) -> None:
        within = new_dataset(world, source="ward-1")
        if trust is Trust.SHUFFLED:
            open_round(world, new_dataset(world, source="ward-1", accounting="additive"), "rnd_0", ceiling=self.CEILING)
        else:
            records = world.new_dataset(trust=trust, delta_atto=MICRO, accounting="gaussian", source="ward-1")
            open_round(world, records, "rnd_0", Amounts(NANO // 10, 1000), ceiling=self.CEILING)
            open_round(world, within, "rnd_1", ceiling=self.CEILING)
        open_round(world, within, "rnd_a", ceiling=self.CEILING)
        with pytest.raises(CeilingExceeded) as refused:
            open_round(world, within, "rnd_more", ceiling=self.CEILING)
        assert refused.value.short == "shuffled_epsilon"
