"""Check the ledger against a reference: random entries, retries, rollbacks and concurrent charges."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from audit.checks.check import Check, Finding, Setting
from audit.ledger.database import (
    ACTOR,
    START,
    ReferenceLedger,
    draw_amounts,
    open_ledger,
    roll_back,
    temporary_database,
)
from models.database.engine import Database
from models.errors import BudgetExhausted, Conflict
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables.ledger import Kind, LedgerEntry
from sfumato.privacy.cycles import CYCLE_PREFIX
from sfumato.privacy.entropy import Entropy, below

N_STEPS = 3000
STEPS_PER_WALK = 150  # then a new walk starts with new ledgers
N_LEDGERS = 3  # ledgers per walk; they must not affect each other
STEPS_PER_VERIFICATION = 25  # steps
N_CONCURRENT_TRIALS = 8
N_WRITERS = 8

WITHIN_BUDGET = "charged + reserved <= granted for epsilon and delta, and the balance is the sum of the entries"
IDEMPOTENT = "a repeated entry changes nothing; with another amount it is rejected"
ATOMIC = "a transaction without commit changes nothing"
CONCURRENT = "of concurrent charges, as many are accepted as the budget allows"


class Entry(NamedTuple):
    """An entry to add."""

    kind: str
    amounts: Amounts
    reference: str
    job_id: str | None


AddEntry = Callable[[Session, str, Entry], Any]
SpendBudget = Callable[[Database, str, Amounts, str], None]


def add_entry(session: Session, dataset_id: str, entry: Entry) -> LedgerEntry | None:
    """Add an entry of a kind with the service's functions. Return None for a release of nothing.

    The kind `open` begins a cycle of a series, and `expire` ends it. Both add two entries.
    """
    common: dict[str, Any] = {"actor": ACTOR, "now": START}
    kind, amounts, reference, job_id = entry
    if kind == "open":
        return ledger.open_cycle(session, dataset_id, amounts, cycle_id=reference, **common)
    if kind == "expire":
        return ledger.end_cycle(session, dataset_id, cycle_id=reference, **common)
    if kind == "release":
        return ledger.release(session, dataset_id, job_id=reference, **common)
    if kind == "grant":
        return ledger.grant(session, dataset_id, amounts, reference=reference, **common)
    if kind == "reserve":
        return ledger.reserve(session, dataset_id, amounts, job_id=reference, **common)
    return ledger.charge(session, dataset_id, amounts, reference=reference, reservation=job_id, **common)


@dataclass
class LedgerWalk:
    """A random walk on one ledger and on its reference.

    Attributes
    ----------
    faults : dict
        The first fault per claim.
    """

    database: Database
    dataset_id: str
    entropy: Entropy
    add_entry: AddEntry = add_entry
    expected: ReferenceLedger = field(default_factory=ReferenceLedger)
    entries: list[Entry] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    n_steps: int = 0

    def step(self) -> None:
        """Run a random action and compare the results."""
        self.n_steps += 1
        choices: list[tuple[Callable[[], None], str]] = [
            *[(self.add, WITHIN_BUDGET)] * 4,
            (self.retry, IDEMPOTENT),
            (self.retry_with_other_amount, IDEMPOTENT),
            (self.crash, ATOMIC),
        ]
        action, claim = choices[below(self.entropy, len(choices))]
        action()
        self.compare(claim)

    def add(self) -> None:
        """Add a new entry, or check its rejection."""
        entry = self._draw_entry()
        kind, amounts, _, job_id = entry
        is_accepted = self.expected.accepts(kind, amounts, job_id)
        try:
            with self.database.transaction() as session:
                self.add_entry(session, self.dataset_id, entry)
        except BudgetExhausted:
            if is_accepted:
                self._add_fault(WITHIN_BUDGET, f"a {kind} within the budget was rejected")
            return
        if not is_accepted:
            self._add_fault(WITHIN_BUDGET, f"a {kind} above the budget was accepted")
        for each in _list_parts(entry):
            self.expected.apply(each.kind, each.amounts, each.job_id)
            self.entries.append(each)

    def retry(self) -> None:
        """Repeat an entry, as a client does without a response."""
        if self.entries:
            entry = self.entries[below(self.entropy, len(self.entries))]
            try:
                with self.database.transaction() as session:
                    stored = self.add_entry(session, self.dataset_id, entry)
            except (BudgetExhausted, Conflict):
                self._add_fault(IDEMPOTENT, f"a repeated {entry.kind} was rejected")
                return
            is_other = stored is None or Amounts.of(stored) != entry.amounts
            if entry.kind not in ("release", "expire") and is_other:
                self._add_fault(IDEMPOTENT, f"a repeated {entry.kind} returned another entry")

    def retry_with_other_amount(self) -> None:
        """Repeat an entry with another amount, which must be rejected."""
        others = [each for each in self.entries if each.kind not in ("release", "expire")]
        if others:
            entry = others[below(self.entropy, len(others))]
            place = below(self.entropy, 2)
            more = Amounts(*(amount + (i == place) for i, amount in enumerate(entry.amounts)))
            try:
                with self.database.transaction() as session:
                    self.add_entry(session, self.dataset_id, entry._replace(amounts=more))
            except Conflict:
                return
            except BudgetExhausted:
                self._add_fault(IDEMPOTENT, f"a {entry.kind} repeated with another amount was treated as new")
                return
            self._add_fault(IDEMPOTENT, f"a {entry.kind} repeated with another amount was accepted")

    def crash(self) -> None:
        """End the process after an entry is written and before the commit."""
        entry = self._draw_entry()
        if self.expected.accepts(entry.kind, entry.amounts, entry.job_id):
            try:
                with roll_back(self.database) as session:
                    self.add_entry(session, self.dataset_id, entry)
            except BudgetExhausted:
                self._add_fault(WITHIN_BUDGET, f"a {entry.kind} within the budget was rejected")

    def compare(self, claim: str) -> None:
        """Compare balance, entries and reference. Verify the chain from time to time.

        A difference contradicts `claim`.
        """
        with self.database.reading() as session:
            balance = ledger.balance(session, self.dataset_id)
            stored = ledger.page(session, self.dataset_id, after_seq=0, limit=10 * STEPS_PER_WALK)
            reserved = {
                job_id: ledger.reserved_for(session, self.dataset_id, job_id)
                for job_id in self.expected.epsilon.reserved_by_job
            }
            ok = self.n_steps % STEPS_PER_VERIFICATION or ledger.verify(session, self.dataset_id).ok
        if balance.is_over or min(each or 0 for each in balance) < 0:
            self._add_fault(WITHIN_BUDGET, "the balance exceeds the grants")
        if not balance == self.expected.balance == sum_entries(stored):
            self._add_fault(claim, f"step {self.n_steps}: balance, entries and reference ledger differ")
        if reserved != {job_id: self.expected.reserved_for(job_id) for job_id in self.expected.epsilon.reserved_by_job}:
            self._add_fault(claim, f"step {self.n_steps}: the reservation of a job is wrong")
        if [(e.kind, Amounts.of(e), e.reference, e.reservation) for e in stored] != self.entries:
            self._add_fault(claim, f"step {self.n_steps}: the entries differ from the accepted ones")
        if not ok:
            self._add_fault(WITHIN_BUDGET, "the hash chain is invalid")

    def _draw_entry(self) -> Entry:
        """Draw an entry. Most entries fit, or exceed the budget by one unit."""
        kinds = ("grant", "reserve", "reserve", "open", "charge", "charge", "charge", "charge", "release")
        kind = kinds[below(self.entropy, len(kinds)) if self.entries else 0]  # the first entry is a grant
        reference, reserved = f"ref_{len(self.entries)}", [*self.expected.epsilon.reserved_by_job]
        drawn_job = ("job_unknown", *reserved[-4:])[below(self.entropy, 1 + len(reserved[-4:]))]
        if kind == "release":
            ends_cycle = drawn_job.startswith(CYCLE_PREFIX)
            return Entry("expire" if ends_cycle else kind, self.expected.reserved_for(drawn_job), drawn_job, drawn_job)
        if kind == "open":
            reference = f"{CYCLE_PREFIX}{len(self.entries)}-0"
            return Entry(kind, draw_amounts(self.entropy, least=1, most=2), reference, reference)
        if kind == "grant":
            return Entry(kind, draw_amounts(self.entropy, least=1, most=16), reference, None)
        if kind == "reserve":
            return Entry(kind, draw_amounts(self.entropy, most=2), reference, reference)
        job_id = drawn_job if below(self.entropy, 4) else None
        if job_id is None or not below(self.entropy, 4):
            return Entry(kind, draw_amounts(self.entropy, most=2), reference, job_id)
        left = self.expected.reserved_for(job_id)
        part, is_too_much = 1 + below(self.entropy, 3), not below(self.entropy, 6)
        return Entry(kind, Amounts(left[0] // part, left[1] // part + is_too_much), reference, job_id)

    def _add_fault(self, claim: str, why: str) -> None:
        self.faults.setdefault(claim, why)


def _list_parts(entry: Entry) -> list[Entry]:
    """Return the entries of the ledger that an entry to add becomes; none for a release of nothing."""
    kind, amounts, reference, _ = entry
    if kind == "open":
        return [Entry("grant", amounts, reference, None), Entry("reserve", amounts, reference, reference)]
    if kind in ("release", "expire") and not any(amounts):
        return []
    if kind == "expire":
        return [Entry("release", amounts, reference, reference), Entry("expire", amounts, reference, None)]
    return [entry]


def sum_entries(entries: Sequence[LedgerEntry]) -> Balance:
    """Return the balance of entries."""
    sums = []
    for name in ("epsilon_nano", "delta_atto"):
        part = {kind: sum(getattr(e, name) for e in entries if e.kind == kind) for kind in Kind}
        from_reservations = sum(getattr(e, name) for e in entries if e.kind == "charge" and e.reservation is not None)
        sums += [
            part[Kind.GRANT] - part[Kind.EXPIRE],
            part[Kind.RESERVE] - part[Kind.RELEASE] - from_reservations,
            part[Kind.CHARGE],
        ]
    return Balance(*sums)


def run_walks(
    database: Database, setting: Setting, n_steps: int, implementation: AddEntry = add_entry
) -> list[Finding]:
    """Run walks with this total number of steps, each on several ledgers in alternation."""
    faults: dict[str, str] = {}
    for first in range(0, n_steps, STEPS_PER_WALK):
        if faults:
            break  # a difference between ledger and reference remains
        entropy = setting.entropy(f"ledger/{first}")
        walks = [
            LedgerWalk(database, open_ledger(database, f"ds_{setting.seed}_{first}_{i}"), entropy, implementation)
            for i in range(N_LEDGERS)
        ]
        for _ in range(min(STEPS_PER_WALK, n_steps - first)):
            walk = walks[below(entropy, N_LEDGERS)]
            walk.step()
            for claim, why in walk.faults.items():
                faults.setdefault(claim, why)
            if faults:
                break
    claims = (WITHIN_BUDGET, IDEMPOTENT, ATOMIC)
    return [
        Finding("ledger", claim, "walk", n_steps, holds=claim not in faults, why=faults.get(claim, ""))
        for claim in claims
    ]


def spend(database: Database, dataset_id: str, amounts: Amounts, reference: str) -> None:
    """Charge the free budget in a transaction of its own."""
    with database.transaction() as session:
        add_entry(session, dataset_id, Entry("charge", amounts, reference, None))


def check_concurrent_charges(
    database: Database, setting: Setting, implementation: SpendBudget = spend
) -> list[Finding]:
    """Let writers charge at the same time against a budget for some of them; for epsilon, then for delta."""
    entropy, why = setting.entropy("ledger/at once"), ""
    n_trials = setting.effort.trials(N_CONCURRENT_TRIALS)
    for trial in range(n_trials):
        n_affordable = 1 + below(entropy, N_WRITERS - 1)
        part = Amounts(333_333_333, 0) if trial % 2 else Amounts(0, 333_333_333_333)
        granted = Amounts(*(n_affordable * amount for amount in part))
        dataset_id = open_ledger(database, f"ds_{setting.seed}_meeting_{trial}")
        with database.transaction() as session:
            add_entry(session, dataset_id, Entry("grant", granted, "grant", None))
        calls = [partial(implementation, database, dataset_id, part, f"ref_{i}") for i in range(N_WRITERS)]
        n_accepted = sum(_call_concurrently(calls))
        with database.reading() as session:
            balance, verification = ledger.balance(session, dataset_id), ledger.verify(session, dataset_id)
        if n_accepted != n_affordable:
            why = why or f"{n_accepted} of {N_WRITERS} concurrent charges were accepted, not {n_affordable}"
        elif balance != Balance(granted[0], 0, granted[0], granted[1], 0, granted[1]) or not verification.ok:
            why = why or "the balance after concurrent charges is not the sum of the accepted ones"
    return [Finding("ledger: concurrent charges", CONCURRENT, "walk", n_trials * N_WRITERS, holds=not why, why=why)]


def _call_concurrently(calls: Sequence[Callable[[], None]]) -> list[bool]:
    """Call functions at the same time. Return which were not rejected for lack of budget."""

    def succeeds(call: Callable[[], None]) -> bool:
        try:
            call()
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(succeeds, calls))


def check_entries(setting: Setting, *, implementation: AddEntry = add_entry) -> list[Finding]:
    """Run walks in a temporary database."""
    with temporary_database() as database:
        return run_walks(database, setting, setting.effort.trials(N_STEPS), implementation)


def check_concurrency(setting: Setting, *, implementation: SpendBudget = spend) -> list[Finding]:
    """Run concurrent charges in a temporary database."""
    with temporary_database() as database:
        return check_concurrent_charges(database, setting, implementation)


CHECKS: tuple[Check, ...] = (Check("ledger", check_entries), Check("ledger: concurrent charges", check_concurrency))
