"""The ledger's chain: whatever is done to history behind the service's back is seen.

Two walk it: the service itself, which knows the end it wrote, and an auditor outside, who has
the published entries and noted an end earlier on. Whoever holds the database can make a chain
anew from some place on, with hashes, balances and an end that fit: that is seen by the noted
end alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.check import Check, Finding, Setting
from audit.ledger import Walk
from audit.ledger_world import open_books, temporary_database, undone
from models import ledger
from models.db import Database
from models.ledger import Amounts, Balance, Kind, LedgerEntry
from sfumato import ledger as outside
from sfumato.entropy import Entropy, below

ENTRIES = 24  # of a chain that is tampered with
TAMPERED = 12  # of each way, where effort is quick
COLUMNS = [column.key for column in LedgerEntry.__table__.columns]

LEADS = "the chain holds, and leads to the end that was noted earlier and to the one it has"

Entry = outside.LedgerEntry
Tamper = Callable[[list[Entry], Entropy], list[Entry]]


@dataclass(frozen=True)
class Chain:
    """A ledger as it stood, and the ends an auditor noted: one on the way, and the last."""

    dataset_id: str
    entries: list[Entry]
    noted: list[outside.Head]


def chain_of(database: Database, setting: Setting, name: str, n_entries: int = ENTRIES) -> Chain:
    """A chain of every kind of entry, walked at random."""
    walk = Walk(database, open_books(database, name), setting.entropy(name))
    while len(walk.done) < n_entries or {kind for kind, *_ in walk.done} != set(Kind):
        walk.enter()
    with database.reading() as session:
        entries = published(session, walk.dataset_id)
    noted = [outside.Head(entry.seq, entry.hash) for entry in (entries[len(entries) // 2], entries[-1])]
    return Chain(walk.dataset_id, entries, noted)


def published(session: Session, dataset_id: str) -> list[Entry]:
    """What the service publishes of a ledger."""
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq)
    rows = session.scalars(query.execution_options(populate_existing=True))
    return [_as_published({name: getattr(row, name) for name in COLUMNS}) for row in rows]


def _as_published(values: dict[str, Any]) -> Entry:
    return Entry(**values | {"at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=values["at"])})


def _as_stored(entry: Entry) -> dict[str, Any]:
    at = (entry.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return {name: getattr(entry, name) for name in COLUMNS} | {"at": at}


# ---- tampering ----


def edited(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """One value of one entry is another."""
    place, names = below(entropy, len(entries)), [name for name in COLUMNS if name != "dataset_id"]
    name = names[below(entropy, len(names))]
    value = getattr(entries[place], name)
    other: Any
    if name == "kind":
        other = next(kind.value for kind in Kind if kind != value)
    elif isinstance(value, datetime):
        other = value + timedelta(microseconds=1)
    elif isinstance(value, int):
        other = value + 1 + below(entropy, 1000)
    elif value is None:
        other = "job_other"
    else:
        other = ("1" if value[0] == "0" else "0") + value[1:]
    return _with(entries, place, replace(entries[place], **{name: other}))


def edited_to_fit(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """One amount is another, of epsilon or of delta, and the entry's own hash is made to fit."""
    place, name = below(entropy, len(entries)), Amounts._fields[below(entropy, 2)]
    amounts = {name: getattr(entries[place], name) + 1 + below(entropy, 1000)}
    changed = replace(entries[place], **amounts)
    return _with(entries, place, replace(changed, hash=changed.computed_hash()))


def removed(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """One entry is gone, but for the last."""
    place = below(entropy, len(entries) - 1)
    return entries[:place] + entries[place + 1 :]


def renumbered(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """One entry is gone, and the later ones have moved up."""
    place = below(entropy, len(entries) - 1)
    return entries[:place] + [replace(entry, seq=entry.seq - 1) for entry in entries[place + 1 :]]


def reordered(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """Two entries have changed places."""
    first = below(entropy, len(entries) - 1)
    second = first + 1 + below(entropy, len(entries) - 1 - first)
    one, other = entries[first], entries[second]
    return _with(_with(entries, first, replace(other, seq=one.seq)), second, replace(one, seq=other.seq))


def inserted(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """A grant that nobody made, its hash made to fit what is before it."""
    place = below(entropy, len(entries) + 1)
    before = entries[place - 1].hash if place else outside.GENESIS_HASH
    model = entries[min(place, len(entries) - 1)]
    forged = replace(
        model, id="led_forged", seq=place + 1, kind="grant", reference="forged", reservation=None, epsilon_nano=10**9,
        granted_nano=model.granted_nano + 10**9, prev_hash=before,
    )  # fmt: skip
    later = [replace(entry, seq=entry.seq + 1) for entry in entries[place:]]
    return [*entries[:place], replace(forged, hash=forged.computed_hash()), *later]


def cut(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """The last entries are gone: one, some or all."""
    return entries[: below(entropy, len(entries))]


def rewritten(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """An entry before the noted end is another, and everything from there on is made to fit it."""
    place = below(entropy, len(entries) // 2)
    changed = [*entries]
    changed[place] = replace(entries[place], actor="key_nobody")
    return rechained(changed, place)


def forgotten(entries: list[Entry], entropy: Entropy) -> list[Entry]:
    """One posting is gone, and every later balance and hash is made to fit."""
    spent = [place for place, entry in enumerate(entries) if entry.kind == "post"]
    place = spent[below(entropy, len(spent))]
    left = [replace(entry, seq=seq) for seq, entry in enumerate(entries[:place] + entries[place + 1 :], start=1)]
    return rechained(left, place)


def rechained(entries: list[Entry], first: int) -> list[Entry]:
    """Balances and hashes anew from a place on."""
    out = entries[:first]
    balance = Balance(*(getattr(out[-1], name) for name in Balance._fields)) if out else Balance()
    for entry in entries[first:]:
        amounts = Amounts(entry.epsilon_nano, entry.delta_atto)
        balance = balance.after(Kind(entry.kind), amounts, entry.reservation)
        linked = replace(entry, prev_hash=out[-1].hash if out else outside.GENESIS_HASH, **balance._asdict())
        out.append(replace(linked, hash=linked.computed_hash()))
    return out


def _with(entries: list[Entry], place: int, entry: Entry) -> list[Entry]:
    return [*entries[:place], entry, *entries[place + 1 :]]


SEEN_BY_THE_SERVICE: tuple[Tamper, ...] = (edited, edited_to_fit, removed, renumbered, reordered, inserted, cut)
SEEN_FROM_OUTSIDE: tuple[Tamper, ...] = (*SEEN_BY_THE_SERVICE, rewritten, forgotten)


# ---- who sees it ----


def faults(database: Database, chain: Chain, entries: Sequence[Entry], *, with_end: bool) -> Iterator[str]:
    """What the service and an auditor find of a ledger of which somebody has made these entries.

    `with_end`: the stored end was made to fit as well, which whoever holds the database can do.
    """
    with undone(database) as session:
        _lay_down(database, session, chain.dataset_id, entries, with_end=with_end)
        found = ledger.verify(session, chain.dataset_id)
        shown, end = published(session, chain.dataset_id), ledger.head(session, chain.dataset_id)
        seen = outside.verify(shown, chain.dataset_id, [outside.Head(end.seq, end.hash), *chain.noted])
    if not found.ok:
        yield f"the service: {found.reason}"
    if not seen.ok:
        yield f"an auditor: {seen.reason}"


def _lay_down(
    database: Database, session: Session, dataset_id: str, entries: Sequence[Entry], *, with_end: bool
) -> None:
    """Make these the ledger's entries, as somebody does who holds the database: the triggers go first."""
    append_only = ("append_only_update", "append_only_delete") if database.is_sqlite else ("append_only",)
    for trigger in (*append_only, "keeps_delta"):
        session.execute(text(f"DROP TRIGGER ledger_{trigger}" + " ON ledger_entries" * (not database.is_sqlite)))
    session.execute(delete(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id))
    if entries:
        session.execute(insert(LedgerEntry), [_as_stored(entry) for entry in entries])
    if with_end:
        end = outside.Head(entries[-1].seq, entries[-1].hash) if entries else outside.GENESIS
        of_it = ledger.LedgerHead.dataset_id == dataset_id
        session.execute(update(ledger.LedgerHead).where(of_it).values(seq=end.seq, hash=end.hash))
    session.expire_all()


def history(setting: Setting, *, tamper: Tamper | None = None, with_end: bool = False) -> list[Finding]:
    """Whether a ledger holds, and leads to what was noted of it: after somebody was at it, or nobody."""
    with temporary_database() as database:
        chain = chain_of(database, setting, f"ds_{setting.seed}_history")
        entropy = setting.entropy("ledger/history")
        entries = chain.entries if tamper is None else tamper(chain.entries, entropy)
        why = "; ".join(faults(database, chain, entries, with_end=with_end))
    return [Finding("ledger: history", LEADS, "walk", len(entries), holds=not why, why=why)]


def tampered(database: Database, chains: Sequence[Chain], tamper: Tamper, entropy: Entropy) -> Finding:
    """Whether one way of tampering is seen: by the service, or where it made the stored end fit, from outside."""
    name = tamper.__name__.replace("_", " ")
    n, why = 0, ""
    for chain in chains:
        entries = tamper(chain.entries, entropy)
        for with_end in (False, True):
            if with_end and entries[: len(chain.entries)] == chain.entries:
                continue  # what goes on from the end is no tampering with history
            n += 1
            try:
                seen = list(faults(database, chain, entries, with_end=with_end))
            except DBAPIError:
                continue  # the database itself takes no such entry
            by_service = tamper in SEEN_BY_THE_SERVICE and not with_end
            if not seen or (by_service and not any(each.startswith("the service") for each in seen)):
                why = why or f"nobody saw it (trial {n})"
    claim = f"history that was {name} is seen by the service or, where the end was made to fit, from outside"
    return Finding("ledger: tampering", claim, "walk", n, holds=not why, why=why)


def tampering(setting: Setting) -> list[Finding]:
    """Every way to tamper with a ledger, on ledgers of every kind of entry."""
    with temporary_database() as database:
        names = [f"ds_{setting.seed}_tampering_{i}" for i in range(setting.effort.trials(TAMPERED))]
        chains = [chain_of(database, setting, name) for name in names]
        return [
            tampered(database, chains, tamper, setting.entropy(f"ledger/{tamper.__name__}"))
            for tamper in SEEN_FROM_OUTSIDE
        ]


CHECKS: tuple[Check, ...] = (Check("ledger: history", history), Check("ledger: tampering", tampering))
