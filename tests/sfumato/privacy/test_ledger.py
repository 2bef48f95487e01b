"""Verification of a ledger's chain: every change of an entry is detected."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from models.database.engine import Database
from models.ledger import ledger
from models.ledger.amounts import Amounts
from sfumato.privacy.ledger import GENESIS, GENESIS_HASH, Balance, Head, LedgerEntry, verify

NANO = 10**9
MICRO = 10**12  # one micro-delta in atto-delta
STEPS = [  # kind, amount, reference, reservation
    ("grant", 8 * NANO, "ds_1", None),
    ("reserve", 3 * NANO, "job_1", "job_1"),
    ("charge", 1 * NANO, "rnd_1", "job_1"),
    ("charge", 2 * NANO, "rnd_2", None),
    ("release", 2 * NANO, "job_1", "job_1"),
    ("grant", 1, "grant_2", None),
]


def chain(steps: list[tuple[str, int, str, str | None]]) -> list[LedgerEntry]:
    """Return entries with balances and hashes, as the service writes them."""
    entries: list[LedgerEntry] = []
    granted = reserved = charged = 0
    for seq, (kind, amount, reference, reservation) in enumerate(steps, 1):
        granted += amount if kind == "grant" else 0
        charged += amount if kind == "charge" else 0
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
            charged_nano=charged,
            prev_hash=entries[-1].hash if entries else GENESIS_HASH,
            hash="",
        )
        entries.append(replace(entry, hash=entry.computed_hash()))
    return entries


Both = tuple[int, int]


def chain_with_delta(steps: list[tuple[str, Both, str, str | None]]) -> list[LedgerEntry]:
    """Return entries with amounts and balances of epsilon and of delta."""
    epsilon = chain([(kind, amounts[0], *names) for kind, amounts, *names in steps])
    delta = chain([(kind, amounts[1], *names) for kind, amounts, *names in steps])
    return rehashed(
        [
            replace(
                entry,
                delta_atto=other.epsilon_nano,
                granted_delta_atto=other.granted_nano,
                reserved_delta_atto=other.reserved_nano,
                charged_delta_atto=other.charged_nano,
            )
            for entry, other in zip(epsilon, delta, strict=True)
        ]
    )


def rehashed(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries with new numbers and hashes from the first entry on."""
    chained: list[LedgerEntry] = []
    for seq, entry in enumerate(entries, 1):
        entry = replace(entry, seq=seq, prev_hash=chained[-1].hash if chained else GENESIS_HASH)
        chained.append(replace(entry, hash=entry.computed_hash()))
    return chained


CHAIN = chain(STEPS)
HEAD = Head(6, CHAIN[-1].hash)
BALANCE = Balance(8 * NANO + 1, 0, 3 * NANO)
DELTA_STEPS: list[tuple[str, Both, str, str | None]] = [
    ("grant", (8 * NANO, 0), "ds_1", None),
    ("grant", (0, 5 * MICRO), "grant_1", None),
    ("reserve", (2 * NANO, 3 * MICRO), "job_1", "job_1"),
    ("charge", (NANO, MICRO), "job_1#0", "job_1"),
    ("charge", (0, 0), "job_1#1", "job_1"),
    ("release", (NANO, 2 * MICRO), "job_1", "job_1"),
]
DELTA_CHAIN = chain_with_delta(DELTA_STEPS)

UNBALANCED = "the published budget differs from the ledger's balance"
OVERDRAWN_JOB = "a job spent more than it had reserved"
OVERDRAWN = "more was spent than granted"
MALFORMED = "an entry has an unknown kind or a negative amount"


class TestSoundChain:
    def test_is_verified_up_to_its_head(self) -> None:
        verification = verify(CHAIN, "ds_1", [HEAD], BALANCE)
        assert verification.ok
        assert (verification.head, verification.broken_at, verification.reason) == (HEAD, None, "")
        assert verify([], "ds_1", [GENESIS], Balance()).ok

    def test_is_verified_against_earlier_heads(self) -> None:
        for entry in CHAIN:
            assert verify(CHAIN, "ds_1", [Head(entry.seq, entry.hash)]).ok
        assert verify(CHAIN, "ds_1", [GENESIS, Head(2, CHAIN[1].hash), HEAD]).ok
        assert verify(CHAIN, "ds_1", [Head(3, CHAIN[2].hash)], Balance(8 * NANO, 2 * NANO, NANO)).ok

    def test_with_delta_is_verified_with_both_balances(self) -> None:
        balance = Balance(8 * NANO, 0, NANO, 5 * MICRO, 0, MICRO)
        head = Head(6, DELTA_CHAIN[-1].hash)
        assert verify(DELTA_CHAIN, "ds_1", [head], balance).ok
        assert verify(DELTA_CHAIN, "ds_1", [head], balance._replace(charged_delta_atto=0)).reason == UNBALANCED

    def test_hashes_canonical_json_with_the_time_in_microseconds(self) -> None:
        first, second, *_ = DELTA_CHAIN
        assert first == chain([STEPS[0]])[0]
        text = (
            '{"actor":"key_Ä","at":1767225600000002,"charged_delta_atto":0,"charged_nano":0,'
            '"charged_shuffled_delta_atto":0,"charged_shuffled_nano":0,"dataset_id":"ds_1","delta_atto":5000000000000,"epsilon_nano":0,'
            '"granted_delta_atto":5000000000000,"granted_nano":8000000000,'
            '"granted_shuffled_delta_atto":0,"granted_shuffled_nano":0,"id":"led_2","kind":"grant",'
            '"prev_hash":"' + first.hash + '",'
            '"reference":"grant_1","reservation":null,"reserved_delta_atto":0,"reserved_nano":0,"seq":2,'
            '"shuffled_delta_atto":0,"shuffled_nano":0}'
        )
        assert second.hash == hashlib.sha256(text.encode()).hexdigest()


class TestDamagedChain:
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
            {"charged_nano": 7},
            {"id": "led_9"},
            {"dataset_id": "ds_9"},
            {"hash": "0" * 64},
            {"prev_hash": "1" * 64},
        ],
        ids=str,
    )
    def test_an_edit_of_any_field_is_detected(self, edit: dict[str, object]) -> None:
        for place in range(len(CHAIN)):
            entries = [*CHAIN]
            entries[place] = replace(entries[place], **edit)  # type: ignore[arg-type]
            assert verify(entries, "ds_1", [HEAD]).broken_at == place + 1

    @pytest.mark.parametrize("name", ["delta_atto", "granted_delta_atto", "reserved_delta_atto", "charged_delta_atto"])
    def test_an_edit_of_delta_is_detected_even_with_new_hashes(self, name: str) -> None:
        for place in range(len(DELTA_CHAIN)):
            entries = [*DELTA_CHAIN]
            entries[place] = replace(entries[place], **{name: getattr(entries[place], name) + 1})
            assert verify(entries, "ds_1", [Head(6, DELTA_CHAIN[-1].hash)]).broken_at == place + 1
            assert verify(rehashed(entries), "ds_1", []).broken_at == place + 1

    def test_removed_repeated_and_missing_entries_are_detected(self) -> None:
        for place in range(len(CHAIN)):
            entries = CHAIN[:place] + CHAIN[place + 1 :]
            assert verify(entries, "ds_1", [HEAD]).broken_at == place + 1
            assert not verify(rehashed(entries), "ds_1", [HEAD]).ok
            cut = verify(CHAIN[:place], "ds_1", [HEAD])
            assert (cut.broken_at, cut.reason) == (place + 1, "the last entries are missing")
        assert verify([*CHAIN, CHAIN[-1]], "ds_1", [HEAD]).broken_at == 7

    def test_another_order_is_detected(self) -> None:
        for order in list(itertools.permutations(range(6)))[1::37]:
            entries = [CHAIN[place] for place in order]
            first_moved = next(i for i, place in enumerate(order) if i != place)
            assert verify(entries, "ds_1", [HEAD]).broken_at == first_moved + 1
            assert not verify(rehashed(entries), "ds_1", [HEAD]).ok

    def test_a_rewritten_history_is_detected_by_a_noted_head(self) -> None:
        forged = chain([("grant", 9 * NANO, "ds_1", None), *STEPS[1:]])
        assert verify(forged, "ds_1", [Head(6, forged[-1].hash)]).ok
        verification = verify(forged, "ds_1", [Head(6, forged[-1].hash), Head(2, CHAIN[1].hash)])
        assert (verification.broken_at, verification.reason) == (2, "the chain does not contain the noted head")
        assert verify(CHAIN, "ds_1", [Head(0, "1" * 64)]).broken_at == 0

    def test_the_ledger_of_another_dataset_is_detected(self) -> None:
        assert verify(CHAIN, "ds_2", [HEAD]).broken_at == 1

    def test_a_budget_that_differs_from_the_balance_is_detected(self) -> None:
        for wrong in (Balance(), Balance(8 * NANO + 2, 0, 3 * NANO), Balance(8 * NANO + 1, 0, 3 * NANO - 1)):
            assert verify(CHAIN, "ds_1", [HEAD], wrong).reason == UNBALANCED
        assert not verify([], "ds_1", [GENESIS], Balance(1, 0, 0)).ok


class TestWellHashedWrongChain:
    @pytest.mark.parametrize(
        ("n_sound", "step", "reason"),  # entries of CHAIN, and the one after them
        [
            (1, ("charge", 9 * NANO, "rnd_1", None), OVERDRAWN),
            (1, ("reserve", 9 * NANO, "job_1", "job_1"), OVERDRAWN),
            (2, ("charge", 4 * NANO, "rnd_1", "job_1"), OVERDRAWN_JOB),
            (2, ("release", 4 * NANO, "job_1", "job_1"), OVERDRAWN_JOB),
            (2, ("charge", NANO, "rnd_1", "job_2"), OVERDRAWN_JOB),
            (1, ("release", 0, "job_1", None), OVERDRAWN_JOB),
            (3, ("charge", NANO, "rnd_1", None), "a reference was charged twice"),
            (1, ("charge", -NANO, "rnd_1", None), MALFORMED),
            (1, ("refund", NANO, "rnd_1", None), MALFORMED),
        ],
    )
    def test_an_impossible_entry_is_detected(
        self, n_sound: int, step: tuple[str, int, str, str | None], reason: str
    ) -> None:
        verification = verify(chain([*STEPS[:n_sound], step]), "ds_1", [])
        assert (verification.broken_at, verification.reason) == (n_sound + 1, reason)

    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            (("charge", (0, 2 * MICRO + 1), "job_1#2", "job_1"), OVERDRAWN_JOB),
            (("release", (0, 2 * MICRO + 1), "job_1", "job_1"), OVERDRAWN_JOB),
            (("charge", (0, 2 * MICRO + 1), "rnd_1", None), OVERDRAWN),
            (("reserve", (0, 2 * MICRO + 1), "job_2", "job_2"), OVERDRAWN),
            (("grant", (0, -1), "grant_2", None), MALFORMED),
        ],
    )
    def test_one_atto_too_much_is_detected(self, step: tuple[str, Both, str, str | None], reason: str) -> None:
        verification = verify(chain_with_delta([*DELTA_STEPS[:5], step]), "ds_1", [])
        assert (verification.broken_at, verification.reason) == (6, reason)

    def test_a_balance_that_does_not_add_up_is_detected(self) -> None:
        entries = [*CHAIN]
        entries[3] = replace(entries[3], charged_nano=entries[3].charged_nano - NANO)
        verification = verify(rehashed(entries), "ds_1", [])
        assert (verification.broken_at, verification.reason) == (4, "a balance does not add up")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()


class TestChainOfTheService:
    @pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
    def test_has_the_same_hashes(self, database: Database) -> None:
        first = {"actor": "key_1", "now": 1_767_225_600_000_001}
        later = {"actor": "key_1", "now": 1_767_225_601_000_000}
        with database.transaction() as session:
            ledger.open_ledger(session, "ds_1")
            ledger.grant(session, "ds_1", Amounts(8 * NANO), reference="ds_1", **first)
            ledger.reserve(session, "ds_1", Amounts(3 * NANO), job_id="job_1", **first)
            for name, reservation in (("rnd_1", "job_1"), ("rnd_2", None)):
                ledger.charge(session, "ds_1", Amounts(NANO), reference=name, reservation=reservation, **first)
            ledger.release(session, "ds_1", job_id="job_1", **first)
            ledger.grant(session, "ds_1", Amounts(0, 5 * MICRO), reference="grant_1", **later)
            ledger.reserve(session, "ds_1", Amounts(NANO, 2 * MICRO), job_id="job_2", **later)
            ledger.charge(session, "ds_1", Amounts(0, MICRO), reference="job_2#0", reservation="job_2", **later)
        with database.reading() as session:
            rows = ledger.page(session, "ds_1", after_seq=0, limit=10)
            end = ledger.head(session, "ds_1")
            entries = [
                LedgerEntry(
                    **{name: getattr(row, name) for name in LedgerEntry.__slots__ if name != "at"},
                    at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.at),
                )
                for row in rows
            ]
        balance = Balance(8 * NANO, NANO, 2 * NANO, 5 * MICRO, MICRO, MICRO)
        assert verify(entries, "ds_1", [Head(end.seq, end.hash)], balance).ok
        assert len(entries) == 8
