"""Checks of the ledger: sound code passes, planted leaks are detected."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from audit.checks.check import Effort, Setting
from audit.ledger import chain as ledger_chain
from audit.ledger import jobs, walks
from audit.ledger.chain import CHECKS as CHAIN
from audit.ledger.chain import (
    DETECTED_BY_AUDITOR,
    WALKED,
    LedgerHistory,
    Tamper,
    check_tampering,
    edit_and_rehash,
    find_faults,
    make_history,
    rehash_from,
    swap_entries,
)
from audit.ledger.database import Account, ReferenceLedger, draw_amounts, open_ledger, roll_back, temporary_database
from audit.planted.ledger import LEAKS
from clustering.random import SeededEntropy
from models.database.engine import Database
from models.ledger.amounts import Amounts, Balance
from models.ledger.ledger import balance
from sfumato.privacy.ledger import Head, verify

SETTING = Setting(Effort.QUICK, 7)
CHECKS = (*walks.CHECKS, *CHAIN, *jobs.CHECKS)
REQUIRED = {  # leaks that must be planted
    "release after failure",
    "overspending by a race",
    "second draw not charged",
    "entry edited",
    "history rewritten",
    "delta forgotten",
}
BROKEN_CLAIMS = {
    "delta forgotten": walks.WITHIN_BUDGET,
    "retry charged again": walks.IDEMPOTENT,
    "charge kept after rollback": walks.ATOMIC,
}


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials so that a quick audit takes a second."""
    monkeypatch.setattr(walks, "N_STEPS", 100)
    monkeypatch.setattr(walks, "N_CONCURRENT_TRIALS", 2)
    monkeypatch.setattr(ledger_chain, "N_TRIALS", 1)
    monkeypatch.setattr(jobs, "N_STEPS", 120)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with temporary_database() as opened:
        yield opened


@pytest.fixture(scope="module")
def chain(database: Database) -> LedgerHistory:
    return make_history(database, SETTING, "ds_chain")


@pytest.mark.parametrize("leak", [leak for leak in LEAKS if leak.subject == "ledger"], ids=lambda leak: leak.name)
def test_planted_leaks_are_detected_by_the_claim_they_break(leak) -> None:
    assert [finding.claim for finding in leak.run(SETTING) if not finding.holds] == [BROKEN_CLAIMS[leak.name]]


def test_required_leaks_are_planted() -> None:
    assert {leak.name for leak in LEAKS} >= REQUIRED
    assert {leak.subject for leak in LEAKS} <= {check.subject for check in CHECKS}
    assert {leak.name for leak in LEAKS if leak.subject == "ledger"} == set(BROKEN_CLAIMS)


class TestLedgerWalk:
    def test_equal_seeds_give_equal_walks_with_all_kinds_and_rejections(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rejected: list[bool] = []
        accepts = ReferenceLedger.accepts

        def record(expected: ReferenceLedger, *charge) -> bool:
            rejected.append(not accepts(expected, *charge))
            return not rejected[-1]

        monkeypatch.setattr(ReferenceLedger, "accepts", record)
        pair = [walks.LedgerWalk(database, open_ledger(database, f"ds_alike_{i}"), SeededEntropy(8)) for i in (0, 1)]
        for walk, n_steps in zip(pair, (120, 40), strict=True):
            for _ in range(n_steps):
                walk.step()
            assert walk.faults == {}
        walk, other = pair
        assert len(other.entries) > 5
        assert walk.entries[: len(other.entries)] == other.entries
        assert {kind for kind, *_ in walk.entries} == set(WALKED)
        assert 5 < sum(rejected) < len(rejected) - 5
        assert walk.expected.balance.granted_delta_atto > 0

    def test_a_rolled_back_transaction_changes_nothing(self, database: Database) -> None:
        dataset_id = open_ledger(database, "ds_undone")
        with roll_back(database) as session:
            walks.add_entry(session, dataset_id, walks.Entry("grant", Amounts(5, 5), "grant", None))
            assert balance(session, dataset_id).granted_nano == 5
        with database.reading() as session:
            assert balance(session, dataset_id) == Balance()


class TestReferenceLedger:
    def test_a_charge_uses_its_reservation_or_the_free_budget(self) -> None:
        book = Account(granted=10)
        book.apply("reserve", 6, "a")
        charges = [(6, "a"), (7, "a"), (4, None), (5, None)]
        assert [book.accepts("charge", *each) for each in charges] == [True, False, True, False]
        book.apply("charge", 6, "a")
        assert (book.charged, book.reserved) == (6, 0)

    def test_both_currencies_must_accept(self) -> None:
        expected = ReferenceLedger(Account(granted=10), Account(granted=1))
        assert expected.accepts("reserve", Amounts(10, 1), "a")
        assert not expected.accepts("reserve", Amounts(1, 2), "a")
        assert not expected.accepts("reserve", Amounts(11, 0), "a")

    def test_amounts_are_integers_and_some_are_not_round(self) -> None:
        entropy = SeededEntropy(1)
        amounts = {draw_amounts(entropy, most=4) for _ in range(300)}
        assert {type(part) for amount in amounts for part in amount} == {int}
        assert any(amount.delta_atto % 10 for amount in amounts)
        assert Amounts(0, 0) in amounts


class TestTampering:
    @pytest.mark.parametrize("tamper", [edit_and_rehash, swap_entries], ids=["edit_and_rehash", "swap_entries"])
    def test_the_changed_entries_are_stored_despite_the_triggers(
        self, database: Database, chain: LedgerHistory, tamper: Tamper
    ) -> None:
        """The test must reach the two verifications, not only the triggers of the database."""
        entropy = SeededEntropy(9)
        for _ in range(20):
            assert list(find_faults(database, chain, tamper(chain.entries, entropy), with_head=False))

    def test_both_amounts_are_edited(self, chain: LedgerHistory) -> None:
        entropy, changed = SeededEntropy(9), set()
        for _ in range(20):
            for before, after in zip(chain.entries, edit_and_rehash(chain.entries, entropy), strict=True):
                names = [name for name in Amounts._fields if getattr(before, name) != getattr(after, name)]
                assert len(names) == (before != after)
                assert after.hash == after.computed_hash()
                changed |= set(names)
        assert changed == {"epsilon_nano", "delta_atto"}

    @pytest.mark.parametrize("tamper", DETECTED_BY_AUDITOR, ids=lambda tamper: tamper.__name__)
    def test_every_kind_changes_the_history(self, chain: LedgerHistory, tamper) -> None:
        changed = [tamper(chain.entries, SeededEntropy(seed)) for seed in range(20)]
        assert all(entries != chain.entries for entries in changed)
        assert len({str(entries) for entries in changed}) >= 3
        numbers = [entry.seq for entry in chain.entries]  # the argument must not change
        assert numbers == list(range(1, len(numbers) + 1))

    def test_a_rebuilt_chain_is_valid_except_for_the_noted_head(self, database: Database, chain: LedgerHistory) -> None:
        rebuilt = rehash_from([replace(chain.entries[0], actor="key_other"), *chain.entries[1:]], 0)
        head = Head(rebuilt[-1].seq, rebuilt[-1].hash)
        assert verify(rebuilt, chain.dataset_id, [head]).ok
        detected = list(find_faults(database, chain, rebuilt, with_head=True))
        assert detected == ["an auditor: the chain does not contain the noted head"]

    def test_an_unchanged_history_has_no_fault(self, database: Database, chain: LedgerHistory) -> None:
        assert list(find_faults(database, chain, chain.entries, with_head=False)) == []
        assert list(find_faults(database, chain, chain.entries, with_head=True)) == []

    def test_undetected_tampering_is_reported(self, database: Database, chain: LedgerHistory) -> None:
        def unchanged(entries, entropy):
            return entries

        assert check_tampering(database, [chain], unchanged, SeededEntropy(0)).why == "undetected (trial 1)"


class TestJobs:
    @pytest.mark.release
    def test_walks_end_jobs_in_every_state_with_and_without_charges(self, database: Database) -> None:
        required = {(state, drawn) for state in ("failed", "canceled") for drawn in (True, False)}
        ended: set[tuple[str, bool]] = set()
        for seed in range(20):  # three seeds suffice
            walk = jobs.JobWalk(database, SeededEntropy(seed), jobs.WorkerActions(), f"ends {seed}")
            for _ in range(jobs.STEPS_PER_WALK):
                walk.step()
            assert walk.fault == ""
            with database.transaction() as session:
                ended |= {
                    (session.get_one(jobs.Job, job.id).state, job.spent.epsilon_nano > 0) for job in walk.jobs.values()
                }
                for dataset_id in walk.dataset_ids.values():
                    jobs.lifecycle.cancel_all(session, dataset_id, now=database.clock())
            if ended >= required:
                break
        assert ended >= required
