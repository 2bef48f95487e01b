"""A ledger's chain, walked from outside: whatever was done to it shows."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from models import ledger as service_ledger
from models.db import Database
from sfumato.ledger import GENESIS, GENESIS_HASH, Balance, Head, LedgerEntry, verify

NANO = 10**9
MICRO = 10**12  # of delta, in atto-delta
STEPS = [  # kind, amount, reference, reservation
    ("grant", 8 * NANO, "ds_1", None),
    ("reserve", 3 * NANO, "job_1", "job_1"),
    ("post", 1 * NANO, "rnd_1", "job_1"),
    ("post", 2 * NANO, "rnd_2", None),
    ("release", 2 * NANO, "job_1", "job_1"),
    ("grant", 1, "grant_2", None),
]


def chain(steps: list[tuple[str, int, str, str | None]]) -> list[LedgerEntry]:
    """Entries as a service would make them, balances and hashes included."""
    entries: list[LedgerEntry] = []
    granted = reserved = posted = 0
    for seq, (kind, amount, reference, reservation) in enumerate(steps, 1):
        granted += amount if kind == "grant" else 0
        posted += amount if kind == "post" else 0
        if reservation is not None:
            reserved += amount if kind == "reserve" else -amount
        entry = LedgerEntry(
            id=f"led_{seq}",
            dataset_id="ds_1",
            seq=seq,
            kind=kind,  # type: ignore[arg-type]
            epsilon_nano=amount,
            reference=reference,
            reservation=reservation,
            actor="key_Ä",
            at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=seq),
            granted_nano=granted,
            reserved_nano=reserved,
            posted_nano=posted,
            prev_hash=entries[-1].hash if entries else GENESIS_HASH,
            hash="",
        )
        entries.append(replace(entry, hash=entry.computed_hash()))
    return entries


Both = tuple[int, int]


def chain_with_delta(steps: list[tuple[str, Both, str, str | None]]) -> list[LedgerEntry]:
    """The same with amounts of epsilon and of delta: of each its own balances."""
    epsilon = chain([(kind, amounts[0], *names) for kind, amounts, *names in steps])
    delta = chain([(kind, amounts[1], *names) for kind, amounts, *names in steps])
    return rehashed(
        [
            replace(
                entry,
                delta_atto=other.epsilon_nano,
                granted_delta_atto=other.granted_nano,
                reserved_delta_atto=other.reserved_nano,
                posted_delta_atto=other.posted_nano,
            )
            for entry, other in zip(epsilon, delta, strict=True)
        ]
    )


def rehashed(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """The chain a forger would show: numbered and hashed anew from end to end."""
    done: list[LedgerEntry] = []
    for seq, entry in enumerate(entries, 1):
        entry = replace(entry, seq=seq, prev_hash=done[-1].hash if done else GENESIS_HASH)
        done.append(replace(entry, hash=entry.computed_hash()))
    return done


CHAIN = chain(STEPS)
HEAD = Head(6, CHAIN[-1].hash)
BALANCE = Balance(8 * NANO + 1, 0, 3 * NANO)


class TestASoundChain:
    def test_holds_up_to_its_head(self) -> None:
        found = verify(CHAIN, "ds_1", [HEAD], BALANCE)
        assert found.ok
        assert (found.head, found.broken_at, found.reason) == (HEAD, None, "")

    def test_holds_when_it_has_gone_on_since_the_head_was_noted(self) -> None:
        for entry in CHAIN:
            assert verify(CHAIN, "ds_1", [Head(entry.seq, entry.hash)]).ok
        assert verify(CHAIN, "ds_1", [GENESIS, Head(2, CHAIN[1].hash), HEAD]).ok
        assert verify(CHAIN, "ds_1", [Head(3, CHAIN[2].hash)], Balance(8 * NANO, 2 * NANO, NANO)).ok

    def test_may_be_empty(self) -> None:
        assert verify([], "ds_1", [GENESIS], Balance()).ok

    def test_hashes_canonical_json_with_the_time_in_microseconds(self) -> None:
        entry = chain([("grant", 5, "ds_1", None)])[0]
        text = (
            '{"actor":"key_Ä","at":1767225600000001,"dataset_id":"ds_1","epsilon_nano":5,"granted_nano":5,'
            '"id":"led_1","kind":"grant","posted_nano":0,"prev_hash":"' + "0" * 64 + '",'
            '"reference":"ds_1","reservation":null,"reserved_nano":0,"seq":1}'
        )
        assert entry.hash == hashlib.sha256(text.encode()).hexdigest()


DELTA_STEPS: list[tuple[str, Both, str, str | None]] = [
    ("grant", (8 * NANO, 0), "ds_1", None),
    ("grant", (0, 5 * MICRO), "grant_1", None),
    ("reserve", (2 * NANO, 3 * MICRO), "job_1", "job_1"),
    ("post", (NANO, MICRO), "job_1#0", "job_1"),
    ("post", (0, 0), "job_1#1", "job_1"),
    ("release", (NANO, 2 * MICRO), "job_1", "job_1"),
]


class TestAChainWithDelta:
    def test_holds_with_the_balance_of_both(self) -> None:
        entries = chain_with_delta(DELTA_STEPS)
        balance = Balance(8 * NANO, 0, NANO, 5 * MICRO, 0, MICRO)
        head = Head(6, entries[-1].hash)
        assert verify(entries, "ds_1", [head], balance).ok
        wrong = balance._replace(posted_delta_atto=0)
        assert verify(entries, "ds_1", [head], wrong).reason == "the budget is not the ledger's balance"

    def test_hashes_delta_where_any_of_it_is_not_0(self) -> None:
        first, second, *_ = chain_with_delta(DELTA_STEPS)
        assert first == chain([STEPS[0]])[0]
        text = (
            '{"actor":"key_Ä","at":1767225600000002,"dataset_id":"ds_1","delta_atto":5000000000000,"epsilon_nano":0,'
            '"granted_delta_atto":5000000000000,"granted_nano":8000000000,"id":"led_2","kind":"grant",'
            '"posted_delta_atto":0,"posted_nano":0,"prev_hash":"' + first.hash + '",'
            '"reference":"grant_1","reservation":null,"reserved_delta_atto":0,"reserved_nano":0,"seq":2}'
        )
        assert second.hash == hashlib.sha256(text.encode()).hexdigest()

    @pytest.mark.parametrize("place", range(6))
    @pytest.mark.parametrize("name", ["delta_atto", "granted_delta_atto", "reserved_delta_atto", "posted_delta_atto"])
    def test_an_edit_of_any_of_it_shows_there(self, place: int, name: str) -> None:
        entries = chain_with_delta(DELTA_STEPS)
        head = Head(6, entries[-1].hash)
        entries[place] = replace(entries[place], **{name: getattr(entries[place], name) + 1})
        assert verify(entries, "ds_1", [head]).broken_at == place + 1
        assert verify(rehashed(entries), "ds_1", []).broken_at == place + 1

    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            (("post", (0, 2 * MICRO + 1), "job_1#2", "job_1"), "a job spent more than it had reserved"),
            (("release", (0, 2 * MICRO + 1), "job_1", "job_1"), "a job spent more than it had reserved"),
            (("post", (0, 2 * MICRO + 1), "rnd_1", None), "more was spent than granted"),
            (("reserve", (0, 2 * MICRO + 1), "job_2", "job_2"), "more was spent than granted"),
            (("grant", (0, -1), "grant_2", None), "an entry is of no known kind, or negative"),
        ],
        ids=["post", "release", "free", "reserve", "negative"],
    )
    def test_well_hashed_and_over_by_one_atto_shows(self, step: tuple[str, Both, str, str | None], reason: str) -> None:
        found = verify(chain_with_delta([*DELTA_STEPS[:5], step]), "ds_1", [])
        assert (found.broken_at, found.reason) == (6, reason)


class TestADamagedChain:
    @pytest.mark.parametrize("place", range(len(CHAIN)))
    @pytest.mark.parametrize(
        "edit",
        [
            {"epsilon_nano": 7},
            {"reference": "rnd_9"},
            {"reservation": "job_9"},
            {"actor": "key_9"},
            {"kind": "reserve", "id": "led_9"},
            {"at": datetime(2027, 1, 1, tzinfo=UTC)},
            {"granted_nano": 99 * NANO},
            {"reserved_nano": 7},
            {"posted_nano": 7},
            {"id": "led_9"},
            {"dataset_id": "ds_9"},
            {"hash": "0" * 64},
            {"prev_hash": "1" * 64},
        ],
        ids=str,
    )
    def test_an_edit_of_any_field_of_any_entry_shows_there(self, place: int, edit: dict[str, object]) -> None:
        entries = [*CHAIN]
        entries[place] = replace(entries[place], **edit)  # type: ignore[arg-type]
        assert verify(entries, "ds_1", [HEAD]).broken_at == place + 1

    @pytest.mark.parametrize("place", range(len(CHAIN)))
    def test_a_removed_entry_shows(self, place: int) -> None:
        entries = CHAIN[:place] + CHAIN[place + 1 :]
        assert verify(entries, "ds_1", [HEAD]).broken_at == place + 1
        assert not verify(rehashed(entries), "ds_1", [HEAD]).ok

    @pytest.mark.parametrize("order", [o for o in itertools.permutations(range(6)) if o != tuple(range(6))][::37])
    def test_another_order_shows(self, order: tuple[int, ...]) -> None:
        entries = [CHAIN[place] for place in order]
        assert verify(entries, "ds_1", [HEAD]).broken_at == next(i for i, p in enumerate(order) if i != p) + 1
        assert not verify(rehashed(entries), "ds_1", [HEAD]).ok

    @pytest.mark.parametrize("length", range(len(CHAIN)))
    def test_a_cut_tail_shows(self, length: int) -> None:
        found = verify(CHAIN[:length], "ds_1", [HEAD])
        assert (found.broken_at, found.reason) == (length + 1, "the last entries are missing")

    def test_an_entry_twice_shows(self) -> None:
        assert verify([*CHAIN, CHAIN[-1]], "ds_1", [HEAD]).broken_at == 7

    def test_a_history_rewritten_from_end_to_end_shows_against_a_head_noted_before(self) -> None:
        forged = chain([("grant", 9 * NANO, "ds_1", None), *STEPS[1:]])
        assert verify(forged, "ds_1", [Head(6, forged[-1].hash)]).ok
        found = verify(forged, "ds_1", [Head(6, forged[-1].hash), Head(2, CHAIN[1].hash)])
        assert (found.broken_at, found.reason) == (2, "the chain does not lead to the head that was noted")

    def test_another_datasets_ledger_shows(self) -> None:
        assert verify(CHAIN, "ds_2", [HEAD]).broken_at == 1

    def test_a_budget_that_is_not_the_balance_shows(self) -> None:
        for wrong in (Balance(), Balance(8 * NANO + 2, 0, 3 * NANO), Balance(8 * NANO + 1, 0, 3 * NANO - 1)):
            assert verify(CHAIN, "ds_1", [HEAD], wrong).reason == "the budget is not the ledger's balance"
        assert not verify([], "ds_1", [GENESIS], Balance(1, 0, 0)).ok

    def test_a_beginning_that_is_not_zeros_shows(self) -> None:
        assert verify(CHAIN, "ds_1", [Head(0, "1" * 64)]).broken_at == 0


class TestAChainThatIsWellHashedAndWrong:
    @pytest.mark.parametrize(
        ("steps", "broken_at", "reason"),
        [
            ([STEPS[0], ("post", 9 * NANO, "rnd_1", None)], 2, "more was spent than granted"),
            ([STEPS[0], ("reserve", 9 * NANO, "job_1", "job_1")], 2, "more was spent than granted"),
            ([*STEPS[:2], ("post", 4 * NANO, "rnd_1", "job_1")], 3, "a job spent more than it had reserved"),
            ([*STEPS[:2], ("release", 4 * NANO, "job_1", "job_1")], 3, "a job spent more than it had reserved"),
            ([*STEPS[:2], ("post", NANO, "rnd_1", "job_2")], 3, "a job spent more than it had reserved"),
            ([STEPS[0], ("release", 0, "job_1", None)], 2, "a job spent more than it had reserved"),
            ([*STEPS[:3], ("post", NANO, "rnd_1", None)], 4, "something was charged twice"),
            ([STEPS[0], ("post", -NANO, "rnd_1", None)], 2, "an entry is of no known kind, or negative"),
            ([STEPS[0], ("refund", NANO, "rnd_1", None)], 2, "an entry is of no known kind, or negative"),
        ],
    )
    def test_shows_what_is_wrong(
        self, steps: list[tuple[str, int, str, str | None]], broken_at: int, reason: str
    ) -> None:
        found = verify(chain(steps), "ds_1", [])
        assert (found.broken_at, found.reason) == (broken_at, reason)

    def test_a_balance_that_does_not_add_up_shows(self) -> None:
        entries = [*CHAIN]
        entries[3] = replace(entries[3], posted_nano=entries[3].posted_nano - NANO)
        found = verify(rehashed(entries), "ds_1", [])
        assert (found.broken_at, found.reason) == (4, "a balance does not add up")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()


class TestTheServicesOwnChain:
    def test_is_verified_by_the_same_hashes(self, database: Database) -> None:
        with database.transaction() as session:
            service_ledger.open_ledger(session, "ds_1")
            service_ledger.grant(session, "ds_1", 8 * NANO, reference="ds_1", actor="key_1", now=1_767_225_600_000_001)
            service_ledger.reserve(session, "ds_1", 3 * NANO, job_id="job_1", actor="key_1", now=1_767_225_600_000_002)
            for name, reservation in (("rnd_1", "job_1"), ("rnd_2", None)):
                service_ledger.post(
                    session,
                    "ds_1",
                    NANO,
                    reference=name,
                    reservation=reservation,
                    actor="key_1",
                    now=1_767_225_600_000_003,
                )
            service_ledger.release(session, "ds_1", job_id="job_1", actor="key_1", now=1_767_225_600_999_999)
            later = {"actor": "key_1", "now": 1_767_225_601_000_000}
            service_ledger.grant(session, "ds_1", 0, delta_atto=5 * MICRO, reference="grant_1", **later)
            service_ledger.reserve(session, "ds_1", NANO, delta_atto=2 * MICRO, job_id="job_2", **later)
            asked = {"reference": "job_2#0", "reservation": "job_2"}
            service_ledger.post(session, "ds_1", 0, delta_atto=MICRO, **asked, **later)
        with database.reading() as session:
            rows = service_ledger.page(session, "ds_1", after_seq=0, limit=10)
            end = service_ledger.head(session, "ds_1")
            entries = [
                LedgerEntry(
                    **{name: getattr(row, name) for name in LedgerEntry.__slots__ if name != "at"},
                    at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.at),
                )
                for row in rows
            ]
        database.close()
        balance = Balance(8 * NANO, NANO, 2 * NANO, 5 * MICRO, MICRO, MICRO)
        assert verify(entries, "ds_1", [Head(end.seq, end.hash)], balance).ok
        assert len(entries) == 8
