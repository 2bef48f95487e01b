"""Check that changes to a ledger's history are detected.

The service verifies the chain and knows the head it wrote. An outside auditor has the published entries and noted an
earlier head. A person with access to the database can rebuild the chain from an entry on, with matching hashes,
balances and head. Only the noted head reveals this.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.checks.check import Check, Finding, Setting
from audit.ledger.database import open_ledger, roll_back, temporary_database
from audit.ledger.walks import LedgerWalk
from models.database.engine import Database
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables.ledger import Kind, LedgerEntry, LedgerHead
from sfumato.privacy import ledger as auditor
from sfumato.privacy.entropy import Entropy, below

WALKED = tuple(kind for kind in Kind if kind is not Kind.GAUSSIAN)  # kinds of entries of an additive ledger
N_ENTRIES = 24  # smallest length of a test history
N_TRIALS = 12  # histories per kind of tampering, in a quick audit
COLUMNS = [column.key for column in LedgerEntry.__table__.columns]

CLAIM = "the hash chain is valid and contains the head that an auditor noted and the stored head"

Entry = auditor.LedgerEntry
Tamper = Callable[[list[Entry], Entropy], list[Entry]]


@dataclass(frozen=True)
class LedgerHistory:
    """The entries of a ledger, and the heads that an auditor noted: one in the middle, and the last."""

    dataset_id: str
    entries: list[Entry]
    known_heads: list[auditor.Head]


def make_history(database: Database, setting: Setting, name: str, n_entries: int = N_ENTRIES) -> LedgerHistory:
    """Make a ledger with every kind of entry by a random walk."""
    walk = LedgerWalk(database, open_ledger(database, name), setting.entropy(name))
    while len(walk.entries) < n_entries or {kind for kind, *_ in walk.entries} != set(WALKED):
        walk.add()
    with database.reading() as session:
        entries = read_published(session, walk.dataset_id)
    known_heads = [auditor.Head(entry.seq, entry.hash) for entry in (entries[len(entries) // 2], entries[-1])]
    return LedgerHistory(walk.dataset_id, entries, known_heads)


def read_published(session: Session, dataset_id: str) -> list[Entry]:
    """Return a ledger's entries as the service publishes them."""
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq)
    rows = session.scalars(query.execution_options(populate_existing=True))
    return [_to_published({name: getattr(row, name) for name in COLUMNS}) for row in rows]


def _to_published(values: dict[str, Any]) -> Entry:
    return Entry(**values | {"at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=values["at"])})


def _to_stored(entry: Entry) -> dict[str, Any]:
    at = (entry.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return {name: getattr(entry, name) for name in COLUMNS} | {"at": at}


# ---- tampering ----


def edit_entry(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Change one value of one entry."""
    position, names = below(entropy, len(entries)), [name for name in COLUMNS if name != "dataset_id"]
    name = names[below(entropy, len(names))]
    value = getattr(entries[position], name)
    other: Any
    if name == "kind":
        other = next(kind.value for kind in Kind if kind != value)
    elif isinstance(value, datetime):
        other = value + timedelta(microseconds=1)
    elif isinstance(value, int):
        other = value + 1 + below(entropy, 1000)
    elif value is None:
        other = 0 if name in auditor.MU2_MEMBERS else "job_other"
    else:
        other = ("1" if value[0] == "0" else "0") + value[1:]
    return _replace_entry(entries, position, replace(entries[position], **{name: other}))


def edit_and_rehash(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Change the epsilon or delta of one entry and update the hash of the entry."""
    position, name = below(entropy, len(entries)), Amounts._fields[below(entropy, 2)]
    amounts = {name: getattr(entries[position], name) + 1 + below(entropy, 1000)}
    changed = replace(entries[position], **amounts)
    return _replace_entry(entries, position, replace(changed, hash=changed.computed_hash()))


def remove_entry(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Remove one entry other than the last."""
    position = below(entropy, len(entries) - 1)
    return entries[:position] + entries[position + 1 :]


def remove_and_renumber(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Remove one entry and renumber later entries."""
    position = below(entropy, len(entries) - 1)
    return entries[:position] + [replace(entry, seq=entry.seq - 1) for entry in entries[position + 1 :]]


def swap_entries(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Swap two entries."""
    first = below(entropy, len(entries) - 1)
    second = first + 1 + below(entropy, len(entries) - 1 - first)
    one, other = entries[first], entries[second]
    return _replace_entry(
        _replace_entry(entries, first, replace(other, seq=one.seq)), second, replace(one, seq=other.seq)
    )


def insert_grant(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Insert a forged grant with a hash that matches the entries before it."""
    position = below(entropy, len(entries) + 1)
    previous_hash = entries[position - 1].hash if position else auditor.GENESIS_HASH
    template = entries[min(position, len(entries) - 1)]
    forged = replace(
        template, id="led_forged", seq=position + 1, kind="grant", reference="forged", reservation=None,
        epsilon_nano=10**9, granted_nano=template.granted_nano + 10**9, prev_hash=previous_hash,
    )  # fmt: skip
    later = [replace(entry, seq=entry.seq + 1) for entry in entries[position:]]
    return [*entries[:position], replace(forged, hash=forged.computed_hash()), *later]


def cut_tail(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Remove the last entries: one, some or all."""
    return entries[: below(entropy, len(entries))]


def rewrite_history(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Change an entry before the noted head, and rebuild everything after it."""
    position = below(entropy, len(entries) // 2)
    changed = [*entries]
    changed[position] = replace(entries[position], actor="key_nobody")
    return rehash_from(changed, position)


def remove_charge(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Remove one charge, and rebuild all later balances and hashes."""
    charges = [position for position, entry in enumerate(entries) if entry.kind == "charge"]
    position = charges[below(entropy, len(charges))]
    remaining = [
        replace(entry, seq=seq) for seq, entry in enumerate(entries[:position] + entries[position + 1 :], start=1)
    ]
    return rehash_from(remaining, position)


def rehash_from(entries: list[Entry], first: int) -> list[Entry]:
    """Rebuild balances and hashes from a position on."""
    chained = entries[:first]
    balance = Balance(*(getattr(chained[-1], name) for name in Balance._fields)) if chained else Balance()
    for entry in entries[first:]:
        amounts = Amounts(entry.epsilon_nano, entry.delta_atto)
        balance = balance.after(Kind(entry.kind), amounts, entry.reservation)
        linked = replace(entry, prev_hash=chained[-1].hash if chained else auditor.GENESIS_HASH, **balance._asdict())
        chained.append(replace(linked, hash=linked.computed_hash()))
    return chained


def _replace_entry(entries: list[Entry], position: int, entry: Entry) -> list[Entry]:
    return [*entries[:position], entry, *entries[position + 1 :]]


DETECTED_BY_SERVICE: tuple[Tamper, ...] = (
    edit_entry,
    edit_and_rehash,
    remove_entry,
    remove_and_renumber,
    swap_entries,
    insert_grant,
    cut_tail,
)
DETECTED_BY_AUDITOR: tuple[Tamper, ...] = (*DETECTED_BY_SERVICE, rewrite_history, remove_charge)


# ---- detection ----


def find_faults(
    database: Database, chain: LedgerHistory, entries: Sequence[Entry], *, with_head: bool
) -> Iterator[str]:
    """Return the faults that the service and an auditor find after a ledger's entries are replaced.

    With `with_head`, the stored head is changed to match, which is possible with access to the database.
    """
    with roll_back(database) as session:
        _store_entries(database, session, chain.dataset_id, entries, with_head=with_head)
        result = ledger.verify(session, chain.dataset_id)
        published, head = read_published(session, chain.dataset_id), ledger.head(session, chain.dataset_id)
        audited = auditor.verify(published, chain.dataset_id, [auditor.Head(head.seq, head.hash), *chain.known_heads])
    if not result.ok:
        yield f"the service: {result.reason}"
    if not audited.ok:
        yield f"an auditor: {audited.reason}"


def _store_entries(
    database: Database, session: Session, dataset_id: str, entries: Sequence[Entry], *, with_head: bool
) -> None:
    """Replace the entries of the ledger. Drop the triggers first, as a person with access to the database can."""
    for change in ("update", "delete") if database.is_sqlite else ("update",):
        on_table = "" if database.is_sqlite else " ON ledger_entries"
        session.execute(text(f"DROP TRIGGER ledger_entries_reject_{change}{on_table}"))
    session.execute(delete(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id))
    if entries:
        session.execute(insert(LedgerEntry), [_to_stored(entry) for entry in entries])
    if with_head:
        head = auditor.Head(entries[-1].seq, entries[-1].hash) if entries else auditor.GENESIS
        is_this = LedgerHead.dataset_id == dataset_id
        session.execute(update(LedgerHead).where(is_this).values(seq=head.seq, hash=head.hash))
    session.expire_all()


def check_history(setting: Setting, *, tamper: Tamper | None = None, with_head: bool = False) -> list[Finding]:
    """Check the history of one ledger; with `tamper`, after tampering."""
    with temporary_database() as database:
        chain = make_history(database, setting, f"ds_{setting.seed}_history")
        entropy = setting.entropy("ledger/history")
        entries = chain.entries if tamper is None else tamper(chain.entries, entropy)
        why = "; ".join(find_faults(database, chain, entries, with_head=with_head))
    return [Finding("ledger: history", CLAIM, "walk", len(entries), holds=not why, why=why)]


def check_tampering(database: Database, chains: Sequence[LedgerHistory], tamper: Tamper, entropy: Entropy) -> Finding:
    """Check that one kind of tampering is detected by the service or, if the head is changed too, by an auditor."""
    name = tamper.__name__.replace("_", " ")
    n, why = 0, ""
    for chain in chains:
        entries = tamper(chain.entries, entropy)
        for with_head in (False, True):
            if with_head and entries[: len(chain.entries)] == chain.entries:
                continue  # entries after the head do not change the history
            n += 1
            try:
                detected = list(find_faults(database, chain, entries, with_head=with_head))
            except DBAPIError:
                continue  # the database rejects the entry
            by_service = tamper in DETECTED_BY_SERVICE and not with_head
            if not detected or (by_service and not any(each.startswith("the service") for each in detected)):
                why = why or f"undetected (trial {n})"
    claim = f"tampering ({name}) is detected by the service or, if the head is changed too, by an auditor"
    return Finding("ledger: tampering", claim, "walk", n, holds=not why, why=why)


def check_all_tampering(setting: Setting) -> list[Finding]:
    """Check every kind of tampering on ledgers with every kind of entry."""
    with temporary_database() as database:
        names = [f"ds_{setting.seed}_tampering_{i}" for i in range(setting.effort.trials(N_TRIALS))]
        chains = [make_history(database, setting, name) for name in names]
        return [
            check_tampering(database, chains, tamper, setting.entropy(f"ledger/{tamper.__name__}"))
            for tamper in DETECTED_BY_AUDITOR
        ]


CHECKS: tuple[Check, ...] = (Check("ledger: history", check_history), Check("ledger: tampering", check_all_tampering))
