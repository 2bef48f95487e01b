"""The ledger as the audit looks at it: sound it passes, and what is planted in it is caught."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from audit import ledger, ledger_chain, ledger_jobs
from audit.check import Effort, Setting
from audit.ledger_chain import CHECKS as CHAIN
from audit.ledger_chain import (
    SEEN_FROM_OUTSIDE,
    Chain,
    Tamper,
    chain_of,
    edited_to_fit,
    faults,
    rechained,
    reordered,
    tampered,
)
from audit.ledger_world import Book, Books, an_amount, open_books, temporary_database, undone
from audit.planted.ledger import LEAKS
from clustering.seeded_entropy import SeededEntropy
from models.db import Database
from models.ledger import Amounts, Balance, Kind, balance
from sfumato.ledger import Head, verify

SETTING = Setting(Effort.QUICK, 7)
CHECKS = (*ledger.CHECKS, *CHAIN, *ledger_jobs.CHECKS)
NAMED = {  # every leak the audit is asked to catch here
    "release after failure",
    "overspend by a race",
    "a retry posts nothing new for a second draw",
    "an entry edited",
    "history rewritten",
    "delta forgotten",
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick audit that is over in a second."""
    monkeypatch.setattr(ledger, "STEPS", 150)
    monkeypatch.setattr(ledger, "MEETINGS", 2)
    monkeypatch.setattr(ledger_chain, "TAMPERED", 1)
    monkeypatch.setattr(ledger_jobs, "STEPS", 240)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with temporary_database() as opened:
        yield opened


@pytest.fixture(scope="module")
def chain(database: Database) -> Chain:
    return chain_of(database, SETTING, "ds_chain")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_what_is_sound_passes(check) -> None:
    for finding in check.run(SETTING):
        assert finding.holds, finding.why
        assert finding.trials >= 1


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_what_is_planted_is_caught(leak) -> None:
    faulty = [finding for finding in leak.run(SETTING) if not finding.holds]
    assert faulty
    assert all(finding.why for finding in faulty)


def test_every_leak_that_was_promised_is_planted() -> None:
    assert {leak.name for leak in LEAKS} >= NAMED
    assert {leak.subject for leak in LEAKS} <= {check.subject for check in CHECKS}


def test_each_leak_is_caught_by_the_claim_it_breaks() -> None:
    caught = {
        leak.name: [f.claim for f in leak.run(SETTING) if not f.holds] for leak in LEAKS if leak.subject == "ledger"
    }
    assert caught == {
        "delta forgotten": [ledger.NEVER_OVER],
        "a retry posts once more": [ledger.RETRIED],
        "a charge outlives its transaction": [ledger.UNDONE],
    }


class TestTheWalk:
    def test_equal_seeds_walk_alike(self, database: Database) -> None:
        walks = [ledger.Walk(database, open_books(database, f"ds_alike_{i}"), SeededEntropy(5)) for i in (0, 1)]
        for walk in walks:
            for _ in range(25):
                walk.step()
        assert walks[0].done == walks[1].done
        assert len(walks[0].done) > 5

    def test_it_meets_the_budgets_end_retries_and_crashes(self, database: Database) -> None:
        walk = ledger.Walk(database, open_books(database, "ds_meets"), SeededEntropy(8))
        refused = []
        bear = Books.bear

        def noted(books: Books, *charge) -> bool:
            refused.append(not bear(books, *charge))
            return not refused[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Books, "bear", noted)
            for _ in range(160):
                walk.step()
        assert {kind for kind, *_ in walk.done} == set(Kind)
        assert 5 < sum(refused) < len(refused) - 5
        assert walk.faults == {}
        assert walk.books.balance.granted_delta_atto > 0

    def test_what_is_undone_leaves_nothing(self, database: Database) -> None:
        dataset_id = open_books(database, "ds_undone")
        with undone(database) as session:
            ledger.charge(session, dataset_id, "grant", Amounts(5, 5), "grant", None)
            assert balance(session, dataset_id).granted_nano == 5
        with database.reading() as session:
            assert balance(session, dataset_id) == Balance()


class TestBooks:
    def test_a_post_takes_from_its_reservation_or_from_what_is_free(self) -> None:
        book = Book(granted=10)
        book.enter("reserve", 6, "a")
        assert (book.bears("post", 6, "a"), book.bears("post", 7, "a"), book.bears("post", 4, None)) == (
            True,
            False,
            True,
        )
        assert not book.bears("post", 5, None)
        book.enter("post", 6, "a")
        assert (book.posted, book.reserved) == (6, 0)

    def test_both_currencies_bear_or_neither(self) -> None:
        books = Books(Book(granted=10), Book(granted=1))
        assert books.bear("reserve", Amounts(10, 1), "a")
        assert not books.bear("reserve", Amounts(1, 2), "a")
        assert not books.bear("reserve", Amounts(11, 0), "a")

    def test_amounts_are_whole_and_not_all_round(self) -> None:
        entropy = SeededEntropy(1)
        amounts = {an_amount(entropy, most=4) for _ in range(300)}
        assert {type(part) for amount in amounts for part in amount} == {int}
        assert any(amount.delta_atto % 10 for amount in amounts)
        assert Amounts(0, 0) in amounts


class TestTampering:
    @pytest.mark.parametrize("tamper", [edited_to_fit, reordered], ids=["edited_to_fit", "reordered"])
    def test_is_laid_down_whatever_the_triggers_of_the_database_refuse(
        self, database: Database, chain: Chain, tamper: Tamper
    ) -> None:
        """Else the database, and neither of the two who walk the chain, would have been looked at."""
        entropy = SeededEntropy(9)
        for _ in range(20):
            assert list(faults(database, chain, tamper(chain.entries, entropy), with_end=False))

    def test_makes_an_amount_of_either_fit(self, chain: Chain) -> None:
        entropy, changed = SeededEntropy(9), set()
        for _ in range(20):
            for before, after in zip(chain.entries, edited_to_fit(chain.entries, entropy), strict=True):
                names = [name for name in Amounts._fields if getattr(before, name) != getattr(after, name)]
                assert len(names) == (before != after)
                assert after.hash == after.computed_hash()
                changed |= set(names)
        assert changed == set(Amounts._fields)

    @pytest.mark.parametrize("tamper", SEEN_FROM_OUTSIDE, ids=lambda tamper: tamper.__name__)
    def test_every_way_changes_history(self, chain: Chain, tamper) -> None:
        changed = [tamper(chain.entries, SeededEntropy(seed)) for seed in range(20)]
        assert all(entries != chain.entries for entries in changed)
        assert len({str(entries) for entries in changed}) >= 3
        assert [entry.seq for entry in chain.entries] == [*range(1, len(chain.entries) + 1)]  # and not its argument

    def test_a_chain_made_anew_holds_but_for_the_noted_end(self, database: Database, chain: Chain) -> None:
        anew = rechained([replace(chain.entries[0], actor="key_other"), *chain.entries[1:]], 0)
        end = Head(anew[-1].seq, anew[-1].hash)
        assert verify(anew, chain.dataset_id, [end]).ok
        seen = list(faults(database, chain, anew, with_end=True))
        assert seen == ["an auditor: the chain does not lead to the head that was noted"]

    def test_what_is_laid_down_unchanged_raises_no_alarm(self, database: Database, chain: Chain) -> None:
        assert list(faults(database, chain, chain.entries, with_end=False)) == []
        assert list(faults(database, chain, chain.entries, with_end=True)) == []

    def test_a_way_that_nobody_sees_is_told(self, database: Database, chain: Chain) -> None:
        def unchanged(entries, entropy):
            return entries

        assert tampered(database, [chain], unchanged, SeededEntropy(0)).why == "nobody saw it (trial 1)"


class TestJobs:
    def test_walks_see_jobs_end_in_every_way_with_and_without_draws(self, database: Database) -> None:
        wanted = {(state, drawn) for state in ("failed", "canceled") for drawn in (True, False)}
        ended: set[tuple[str, bool]] = set()
        for seed in range(20):  # three do
            walk = ledger_jobs.JobWalk(database, SeededEntropy(seed), ledger_jobs.Work(), f"ends {seed}")
            for _ in range(ledger_jobs.STEPS_OF_A_WALK):
                walk.step()
            assert walk.fault == ""
            with database.transaction() as session:
                ended |= {
                    (session.get_one(ledger_jobs.Job, job.id).state, job.spent.epsilon_nano > 0)
                    for job in walk.jobs.values()
                }
                for dataset_id in walk.dataset_ids.values():
                    ledger_jobs.jobs.cancel_all(session, dataset_id, now=database.clock())
            if ended >= wanted:
                break
        assert ended >= wanted
