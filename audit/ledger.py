"""The ledger: walks of charges of every kind, repeated, undone and at once, against plain books."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from audit.check import Check, Finding, Setting
from audit.ledger_world import ACTOR, START, Books, an_amount, open_books, temporary_database, undone
from models import ledger
from models.db import Database
from models.errors import BudgetExhausted, Conflict
from models.ledger import Amounts, Balance, LedgerEntry
from sfumato.entropy import Entropy, below

STEPS = 3000
STEPS_OF_A_WALK = 150  # then another, in ledgers of its own
N_LEDGERS = 3  # of a walk, side by side: what one holds is nothing to another
VERIFIED_EVERY = 25  # steps
MEETINGS = 8  # of writers at once
WRITERS = 8

NEVER_OVER = "posted + reserved <= granted, of epsilon and of delta, and the balance is the sum of the entries"
RETRIED = "what is repeated changes nothing, and repeated with another amount it is refused"
UNDONE = "what was not committed left nothing behind"
AT_ONCE = "of writers at once, those are served whom the budget bears"

Charge = Callable[[Session, str, str, Amounts, str, str | None], Any]
Spend = Callable[[Database, str, Amounts, str], None]


def charge(
    session: Session, dataset_id: str, kind: str, amounts: Amounts, reference: str, job_id: str | None
) -> LedgerEntry | None:
    """An entry of this kind, as the service makes it; None for a release of nothing."""
    common: dict[str, Any] = {"actor": ACTOR, "now": START}
    epsilon_nano, delta_atto = amounts
    if kind == "release":
        return ledger.release(session, dataset_id, job_id=reference, **common)
    if kind == "grant":
        return ledger.grant(session, dataset_id, epsilon_nano, delta_atto=delta_atto, reference=reference, **common)
    if kind == "reserve":
        return ledger.reserve(session, dataset_id, epsilon_nano, delta_atto=delta_atto, job_id=reference, **common)
    return ledger.post(
        session, dataset_id, epsilon_nano, delta_atto=delta_atto, reference=reference, reservation=job_id, **common
    )


@dataclass
class Walk:
    """One ledger, its plain books beside it, and what was seen of faults.

    Attributes
    ----------
    faults : dict
        By claim, the first thing that was seen to contradict it.
    """

    database: Database
    dataset_id: str
    entropy: Entropy
    charge: Charge = charge
    books: Books = field(default_factory=Books)
    done: list[tuple[str, Amounts, str, str | None]] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    n_steps: int = 0

    def step(self) -> None:
        """Something, at random, and what it leaves."""
        self.n_steps += 1
        choices: list[tuple[Callable[[], None], str]] = [
            *[(self.enter, NEVER_OVER)] * 4,
            (self.repeat, RETRIED),
            (self.repeat_otherwise, RETRIED),
            (self.crash, UNDONE),
        ]
        act, claim = choices[below(self.entropy, len(choices))]
        act()
        self.compare(claim)

    def enter(self) -> None:
        """A new entry, or its refusal."""
        kind, amounts, reference, job_id = self._any_charge()
        borne = self.books.bear(kind, amounts, job_id)
        try:
            with self.database.transaction() as session:
                self.charge(session, self.dataset_id, kind, amounts, reference, job_id)
        except BudgetExhausted:
            if borne:
                self._fault(NEVER_OVER, f"a {kind} that fits was refused")
            return
        if not borne:
            self._fault(NEVER_OVER, f"a {kind} that does not fit was accepted")
        if kind != "release" or amounts != Amounts(0, 0):
            self.books.enter(kind, amounts, job_id)
            self.done.append((kind, amounts, reference, job_id))

    def repeat(self) -> None:
        """An entry once more, as a client does that has heard nothing."""
        if self.done:
            kind, amounts, reference, job_id = self.done[below(self.entropy, len(self.done))]
            try:
                with self.database.transaction() as session:
                    entry = self.charge(session, self.dataset_id, kind, amounts, reference, job_id)
            except (BudgetExhausted, Conflict):
                self._fault(RETRIED, f"a {kind} that was repeated was refused")
                return
            if kind != "release" and (entry is None or (entry.epsilon_nano, entry.delta_atto) != amounts):
                self._fault(RETRIED, f"a {kind} that was repeated is told as another one")

    def repeat_otherwise(self) -> None:
        """An entry once more, with another amount: somebody is mistaken, so nothing may be charged."""
        others = [each for each in self.done if each[0] != "release"]
        if others:
            kind, amounts, reference, job_id = others[below(self.entropy, len(others))]
            place = below(self.entropy, 2)
            more = Amounts(*(amount + (i == place) for i, amount in enumerate(amounts)))
            try:
                with self.database.transaction() as session:
                    self.charge(session, self.dataset_id, kind, more, reference, job_id)
            except Conflict:
                return
            except BudgetExhausted:
                self._fault(RETRIED, f"a {kind} was repeated with another amount, and taken for a new one")
                return
            self._fault(RETRIED, f"a {kind} was repeated with another amount, and taken")

    def crash(self) -> None:
        """The process ends after an entry was written and before its transaction was."""
        kind, amounts, reference, job_id = self._any_charge()
        if self.books.bear(kind, amounts, job_id):
            try:
                with undone(self.database) as session:
                    self.charge(session, self.dataset_id, kind, amounts, reference, job_id)
            except BudgetExhausted:
                self._fault(NEVER_OVER, f"a {kind} that fits was refused")

    def compare(self, claim: str) -> None:
        """Balance, entries and books agree, now and then the whole chain; if not, the step contradicts its claim."""
        with self.database.reading() as session:
            balance = ledger.balance(session, self.dataset_id)
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=10 * STEPS_OF_A_WALK)
            held = {job_id: ledger.reserved_for(session, self.dataset_id, job_id) for job_id in self.books.epsilon.held}
            ok = self.n_steps % VERIFIED_EVERY or ledger.verify(session, self.dataset_id).ok
        if balance.is_over or min(balance) < 0:
            self._fault(NEVER_OVER, "the balance is over")
        if not balance == self.books.balance == total(entries):
            self._fault(claim, f"step {self.n_steps}: balance, entries and books differ")
        if held != {job_id: self.books.held(job_id) for job_id in self.books.epsilon.held}:
            self._fault(claim, f"step {self.n_steps}: a job holds something else than it reserved and did not spend")
        if [(e.kind, (e.epsilon_nano, e.delta_atto), e.reference, e.reservation) for e in entries] != self.done:
            self._fault(claim, f"step {self.n_steps}: the entries are not what was charged")
        if not ok:
            self._fault(NEVER_OVER, "the chain does not hold")

    def _any_charge(self) -> tuple[str, Amounts, str, str | None]:
        """Most of what is charged fits, or fails to by one unit."""
        kinds = ("grant", "reserve", "reserve", "post", "post", "post", "post", "release")
        kind = kinds[below(self.entropy, len(kinds)) if self.done else 0]  # of nothing there is nothing to spend
        reference, held = f"ref_{len(self.done)}", [*self.books.epsilon.held]
        some_job = ("job_unknown", *held[-4:])[below(self.entropy, 1 + len(held[-4:]))]
        if kind == "release":
            return kind, self.books.held(some_job), some_job, some_job
        if kind == "grant":
            return kind, an_amount(self.entropy, least=1, most=16), reference, None
        if kind == "reserve":
            return kind, an_amount(self.entropy, most=2), reference, reference
        job_id = some_job if below(self.entropy, 4) else None
        if job_id is None or not below(self.entropy, 4):
            return kind, an_amount(self.entropy, most=2), reference, job_id
        left = self.books.held(job_id)
        part, one_more = 1 + below(self.entropy, 3), not below(self.entropy, 6)
        return kind, Amounts(left[0] // part, left[1] // part + one_more), reference, job_id

    def _fault(self, claim: str, why: str) -> None:
        self.faults.setdefault(claim, why)


def total(entries: Sequence[LedgerEntry]) -> Balance:
    """What entries come to."""
    sums = []
    for name in ("epsilon_nano", "delta_atto"):
        part = {kind: sum(getattr(e, name) for e in entries if e.kind == kind) for kind in ledger.Kind}
        from_held = sum(getattr(e, name) for e in entries if e.kind == "post" and e.reservation is not None)
        sums += [
            part[ledger.Kind.GRANT],
            part[ledger.Kind.RESERVE] - part[ledger.Kind.RELEASE] - from_held,
            part[ledger.Kind.POST],
        ]
    return Balance(*sums)


def walked(database: Database, setting: Setting, n_steps: int, of: Charge = charge) -> list[Finding]:
    """Walks of so many steps in all, some ledgers of each side by side."""
    faults: dict[str, str] = {}
    for first in range(0, n_steps, STEPS_OF_A_WALK):
        if faults:
            break  # books that differ once differ for ever
        entropy = setting.entropy(f"ledger/{first}")
        walks = [
            Walk(database, open_books(database, f"ds_{setting.seed}_{first}_{i}"), entropy, of)
            for i in range(N_LEDGERS)
        ]
        for _ in range(min(STEPS_OF_A_WALK, n_steps - first)):
            walk = walks[below(entropy, N_LEDGERS)]
            walk.step()
            for claim, why in walk.faults.items():
                faults.setdefault(claim, why)
            if faults:
                break
    claims = (NEVER_OVER, RETRIED, UNDONE)
    return [
        Finding("ledger", claim, "walk", n_steps, holds=claim not in faults, why=faults.get(claim, ""))
        for claim in claims
    ]


def spend(database: Database, dataset_id: str, amounts: Amounts, reference: str) -> None:
    """Post from what is free, in a transaction of its own."""
    with database.transaction() as session:
        charge(session, dataset_id, "post", amounts, reference, None)


def at_once(database: Database, setting: Setting, of: Spend = spend) -> list[Finding]:
    """Writers that meet, each to spend one part of a budget for some of them; of epsilon, then of delta."""
    entropy, why = setting.entropy("ledger/at once"), ""
    n_meetings = setting.effort.trials(MEETINGS)
    for meeting in range(n_meetings):
        n_fit = 1 + below(entropy, WRITERS - 1)
        part = Amounts(333_333_333, 0) if meeting % 2 else Amounts(0, 333_333_333_333)
        granted = Amounts(*(n_fit * amount for amount in part))
        dataset_id = open_books(database, f"ds_{setting.seed}_meeting_{meeting}")
        with database.transaction() as session:
            charge(session, dataset_id, "grant", granted, "grant", None)
        n_served = sum(_together([partial(of, database, dataset_id, part, f"ref_{i}") for i in range(WRITERS)]))
        with database.reading() as session:
            balance, checked = ledger.balance(session, dataset_id), ledger.verify(session, dataset_id)
        if n_served != n_fit:
            why = why or f"{n_served} of {WRITERS} writers at once were served, by a budget for {n_fit}"
        elif balance != Balance(granted[0], 0, granted[0], granted[1], 0, granted[1]) or not checked.ok:
            why = why or "writers at once left a balance that is not the sum of what they spent"
    return [Finding("ledger: at once", AT_ONCE, "walk", n_meetings * WRITERS, holds=not why, why=why)]


def _together(calls: Sequence[Callable[[], None]]) -> list[bool]:
    """Which of these calls, all made at once, were not refused for want of budget."""

    def served(call: Callable[[], None]) -> bool:
        try:
            call()
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(served, calls))


def charges(setting: Setting, *, of: Charge = charge) -> list[Finding]:
    """Walks in a database of the audit's own."""
    with temporary_database() as database:
        return walked(database, setting, setting.effort.trials(STEPS), of)


def meetings(setting: Setting, *, of: Spend = spend) -> list[Finding]:
    """Writers at once in a database of the audit's own."""
    with temporary_database() as database:
        return at_once(database, setting, of)


CHECKS: tuple[Check, ...] = (Check("ledger", charges), Check("ledger: at once", meetings))
