"""Check the path of sealed reports: their lengths, the shuffler's queue, and the batches that the service accepts.

A release lowers the cost of a report only if the service cannot link a report to a sender, also if it forwards the
reports to the shuffler. These checks run the shipped queue, both layers and the batch reader. They compare the order of
a release with each order that an observer may know, and the tables of two shufflers that received the same reports in
another order and at other times.

The operating system's generator permutes a release, so the seed of the audit does not repeat it. A sound release fails
the checks of orders and of forwarders once in 10^8 times each.
"""

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from audit.checks.check import Check, Finding, Setting
from audit.ledger.database import temporary_database
from audit.ledger.jobs import FEATURES, new_caller
from audit.mechanisms.exact_channels import EXAMPLES, example_round
from models import datasets
from models.collection import report_intake, rounds
from models.encryption import Keyring
from models.errors import Conflict, RoundClosed
from models.tables.datasets import Dataset, Trust
from models.tables.rounds import CollectionTarget, ReleaseTerms
from models.tables.rounds import Round as ServiceRound
from service.http.problems import BatchRefused
from service.ingestion.batch_reader import BatchReader
from service.ingestion.upload_memory import MemoryLimit
from sfumato.device.sealing import OUTER_BYTES, generate_round_key_pair, open_sealed, seal, sealed_length, wrap
from sfumato.privacy.accounting import NANO
from sfumato.settings import Shuffler
from sfumato.specs import MECHANISMS, DiscreteLaplaceMechanism, LatticeEncoding, RoundSpec
from sfumato.specs.wire import to_wire
from sfumato.transport.batches import generate_signing_key_pair, sign_release
from shuffler.queue import Queue, Released, Sender, State, Submission, Verdict
from shuffler.rounds import Round, parse_round

N_REPORTS = 300  # reports of the release with a checked order
MIN_BATCH = 10
TARGET_REPORTS = 12
MAX_FIXED = 14  # reports that keep their place in a known order; a random permutation exceeds it once in 10^12 times
MAX_DEVIATION = 6  # standard deviations of the correlation between two orders
DATASET_ID = "ds_audit"
_START = 1_800_000_000.0
_CLOSES_AT = "2030-01-01T00:00:00+00:00"
_FILES = ("first.db", "second.db")
_SHARED_BYTES = 8  # two requests share 8 bytes by chance once in 10^8 audits


class ReleasePath(NamedTuple):
    """The parts of a release that the checks run; by default the shipped ones."""

    seal: Callable[..., bytes] = seal
    wrap: Callable[..., bytes] = wrap
    queue: Callable[[Path], Queue] = Queue
    reader: Callable[[ServiceRound, Dataset, MemoryLimit], BatchReader] = BatchReader
    receive_batch: Callable[..., ServiceRound] = report_intake.receive_batch


RELEASE_PATH = ReleasePath()
SPEC = example_round(EXAMPLES["grid"], "grr", 1.0)


class SealedRound:
    """A round with the reports of devices. The id of a report is the number of its device."""

    def __init__(self, path: ReleasePath, *, min_batch: int = MIN_BATCH, target_reports: int = TARGET_REPORTS) -> None:
        members = {
            "id": "rnd_audit",
            "spec": to_wire(SPEC),
            "min_batch": min_batch,
            "target_reports": target_reports,
            "closes_at": _CLOSES_AT,
        }
        self._path, self._keys, self._outer_key = path, generate_round_key_pair(), b""
        self.round: Round = parse_round(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())

    def add_to(self, queue: Queue) -> None:
        """Store the round in a queue, and take its outer key from there."""
        queue.add_round(DATASET_ID, self.round)
        announced = queue.find_announced(self.round.id, DATASET_ID)
        self._outer_key = (announced and announced.outer_public_key) or b""

    def send(self, number: int) -> bytes:
        """Return the bytes that a device sends: a sealed report in a new outer layer."""
        return self.wrap(self.seal(number))

    def wrap(self, sealed: bytes) -> bytes:
        """Return a sealed report in a new outer layer."""
        return self._path.wrap(sealed, self.round.id, self._outer_key)

    def seal(self, number: int) -> bytes:
        """Return the sealed report of a device."""
        value = bytes(SPEC.mechanism.value_bytes)
        place = (self.round.id, self.round.document, self._keys.public_key)
        return self._path.seal(number.to_bytes(16, "big"), 0, value, *place)

    def read_numbers(self, sealed: Sequence[bytes]) -> list[int]:
        """Return the numbers of the devices, in the order of the sealed reports."""
        found = open_sealed(sealed, self.round.id, self.round.document, self._keys.private_key)
        return [-1 if each is None else int.from_bytes(each.report_id, "big") for each in found]


def open_queue(path: ReleasePath, file: Path, sealed: SealedRound) -> tuple[Queue, str]:
    """Return a new queue with the round, and the key of an app backend."""
    queue = path.queue(file)
    key = queue.add_sender(Sender("app", DATASET_ID, True))
    sealed.add_to(queue)
    return queue, key or ""


def submit(queue: Queue, key: str, reports: Sequence[tuple[int, bytes]], now: float) -> list[Verdict]:
    """Store the reports of numbered senders."""
    return queue.store([Submission(key, f"person {number}", "rnd_audit", each) for number, each in reports], now)


# ---- lengths ----


def check_lengths(path: ReleasePath, setting: Setting) -> list[Finding]:
    """Check that all sealed reports of a round have one length, for all mechanisms, encodings, slots and values."""
    trials, why, keys, outer = 0, "", generate_round_key_pair(), generate_round_key_pair().public_key
    for kind in (each for each in MECHANISMS if each != DiscreteLaplaceMechanism.type):
        for name in (each for each in EXAMPLES if each != LatticeEncoding.type):
            spec = example_round(EXAMPLES[name], kind, 1.0)
            sent = (path.wrap(each, "rnd_audit", outer) for each in _seal_all(path, spec, keys.public_key, setting))
            lengths = {len(each) for each in sent}
            trials += 1
            if lengths != {sealed_length(spec.mechanism.value_bytes) + OUTER_BYTES}:
                why = why or f"{kind} x {name}: sent reports have the lengths {sorted(lengths)}"
    claim = "all reports of a round have one length, with both layers"
    return [Finding("sealed reports", claim, "replay", trials, holds=not why, why=why)]


def _seal_all(path: ReleasePath, spec: RoundSpec, public_key: bytes, setting: Setting) -> list[bytes]:
    """Return a sealed report for each slot and symbol of a small round, and for the largest slot."""
    symbols = np.arange(spec.encoding.n_symbols, dtype=np.int64)
    values = spec.mechanism.perturb_many(symbols, setting.entropy("sealed lengths"))
    slots = (*range(spec.encoding.n_slots), 2**32 - 1)
    seal_value = partial(path.seal, bytes(16))
    return [seal_value(slot, each.tobytes(), "rnd_audit", b"{}", public_key) for slot in slots for each in values]


# ---- order and time ----


def check_order(path: ReleasePath, _setting: Setting) -> list[Finding]:
    """Check that the order of a release follows neither from arrivals nor from the queue's rows, nor repeats."""
    sealed = SealedRound(path, target_reports=N_REPORTS)
    with TemporaryDirectory(prefix="sfumato-audit-") as folder:
        files = [Path(folder) / name for name in _FILES]
        queue, key = open_queue(path, files[0], sealed)
        arrived = [(number, sealed.send(number)) for number in range(N_REPORTS)]
        submit(queue, key, arrived, _START)
        queue.close()
        copyfile(*files)  # a second release of the same rows
        with closing(sqlite3.connect(files[0])) as database:
            rows = sealed.read_numbers(
                [row[0] for row in database.execute("SELECT sealed FROM reports ORDER BY place")]
            )
        released = []
        for file in files:
            with closing(path.queue(file)) as queue:
                queue.release_due(_START, 0)
                released.append(sealed.read_numbers(queue.load_batch(sealed.round)))
    first, second = released
    known = {"of arrivals": range(N_REPORTS), "of the rows": rows, "of another release": second}
    why = "" if sorted(first) == list(range(N_REPORTS)) else "the release does not contain each report once"
    for name, order in known.items():
        why = why or (f"a linker by the order {name} succeeds" if _is_linked(first, order) else "")
    claim = "the order of a release is independent of arrivals, rows and other releases"
    return [Finding("shuffler", claim, "sample", N_REPORTS, holds=not why, why=why)]


def _is_linked(released: Sequence[int], known: Sequence[int]) -> bool:
    """Return whether two orders of the same numbers are more alike than random ones."""
    place = {number: at for at, number in enumerate(known)}
    places = np.array([place.get(number, -1) for number in released])
    at = np.arange(len(places))
    correlation = np.corrcoef(places, at)[0, 1]  # its standard deviation is 1 / sqrt(n - 1)
    n_fixed = int((places == at).sum())  # 1 on average, as the next number
    n_next = int((np.diff(places) == 1).sum())
    return bool(abs(correlation) * np.sqrt(len(at) - 1) > MAX_DEVIATION or max(n_fixed, n_next) > MAX_FIXED)


def check_tables(path: ReleasePath, _setting: Setting) -> list[Finding]:
    """Check that the shuffler's tables do not depend on the order and time of arrivals, before and after a release.

    The layout of the file is not compared. Until the release it depends on the order. Later, unused pointers of a page
    keep one place of a row, which belongs to no sender because the secret of the round is deleted.
    """
    sealed = SealedRound(path)
    why = ""
    with TemporaryDirectory(prefix="sfumato-audit-") as folder:
        files = [Path(folder) / name for name in _FILES]
        queue, key = open_queue(path, files[0], sealed)
        arrived = [(number, sealed.send(number)) for number in range(TARGET_REPORTS)]
        queue.close()
        copyfile(*files)  # the same secret of the round
        queues = [path.queue(file) for file in files]
        for number, other in zip(range(TARGET_REPORTS), reversed(range(TARGET_REPORTS)), strict=True):
            submit(queues[0], key, [arrived[number]], _START + number)
            submit(queues[1], key, [arrived[other]], _START + 1000 + 10 * number)
        before = [_read_tables(file) for file in files]
        for queue in queues:
            queue.release_due(_START + 2000, 0)
            queue.end("rnd_audit", State.ACKNOWLEDGED)
            queue.close()
        after = [_read_tables(file) for file in files]
    for when, tables in (("before", before), ("after", after)):
        differing = sorted(name for name in tables[0] if tables[0][name] != tables[1].get(name))
        if differing:
            why = why or f"the table {differing[0]} {when} the release depends on the order or time of arrivals"
    claim = "the tables of a shuffler do not depend on the order and time of arrivals"
    return [Finding("shuffler", claim, "replay", 2 * TARGET_REPORTS, holds=not why, why=why)]


def _read_tables(file: Path) -> dict[str, list[Any]]:
    """Return the rows of each table in their stored order."""
    with closing(sqlite3.connect(file)) as database:
        names = [row[1] for row in database.execute("PRAGMA table_list") if not row[1].startswith("sqlite_")]
        return {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}  # noqa: S608 - own names


# ---- forwarders ----


def check_forwarders(path: ReleasePath, _setting: Setting) -> list[Finding]:
    """Check that a forwarder of reports cannot link a batch to senders: by bytes, length, order or copies.

    The forwarder knows the sender of each request. It sends some reports again under other names, and each device sends
    its report twice. The attacks compare all runs of _SHARED_BYTES bytes, and the order.
    """
    sealed = SealedRound(path, target_reports=N_REPORTS)
    with TemporaryDirectory(prefix="sfumato-audit-") as folder:
        queue, key = open_queue(path, Path(folder) / _FILES[0], sealed)
        reports = [sealed.seal(number) for number in range(N_REPORTS)]
        seen = [[sealed.wrap(each), sealed.wrap(each)] for each in reports]
        sent = []
        for number, (first, second) in enumerate(seen):
            copies = [(N_REPORTS + number, first)] if number % 10 == 0 else []
            sent += [(number, first), *copies, (number, second)]
        with closing(queue):
            submit(queue, key, sent, _START)
            queue.release_due(_START, 0)
            batch = queue.load_batch(sealed.round)
    numbers, linked = sealed.read_numbers(batch), _link(seen, batch)
    why = f"{len(linked)} of {N_REPORTS} reports have bytes of a sender's request" if linked else ""
    if sorted(numbers) != list(range(N_REPORTS)):
        why = why or "the batch does not contain each report once"
    why = why or ("a linker by the order of arrivals succeeds" if _is_linked(numbers, range(N_REPORTS)) else "")
    if any(_runs(first) & _runs(second) for first, second in seen):
        why = why or "two requests of a device have bytes in common"
    claim = "a forwarder links no more reports of a batch to senders than by chance"
    return [Finding("forwarders", claim, "sample", N_REPORTS, holds=not why, why=why)]


def _runs(sent: bytes) -> set[bytes]:
    """Return the runs of _SHARED_BYTES bytes."""
    return {sent[at : at + _SHARED_BYTES] for at in range(len(sent) - _SHARED_BYTES + 1)}


def _link(seen: Sequence[Sequence[bytes]], batch: Sequence[bytes]) -> dict[int, int]:
    """Return the senders with bytes of a report of the batch in their requests, by the place of the report."""
    sender = {run: number for number, requests in enumerate(seen) for each in requests for run in _runs(each)}
    found = {at: next((sender[run] for run in _runs(each) if run in sender), -1) for at, each in enumerate(batch)}
    return {at: number for at, number in found.items() if number >= 0}


# ---- releases ----


def check_releases(path: ReleasePath, _setting: Setting) -> list[Finding]:
    """Check that the shuffler releases a round once and whole, from `min_batch` on, and no number before."""
    with TemporaryDirectory(prefix="sfumato-audit-") as folder:
        steps = [*_release_too_few(path, Path(folder) / "few.db"), *_release_twice(path, Path(folder) / "full.db")]
    why = next((why for holds, why in steps if not holds), "")
    claim = "a shuffler releases each round once, with at least min_batch reports of one length"
    return [Finding("shuffler", claim, "walk", len(steps), holds=not why, why=why)]


def _release_too_few(path: ReleasePath, file: Path) -> list[tuple[bool, str]]:
    sealed = SealedRound(path)
    queue, key = open_queue(path, file, sealed)
    with closing(queue):
        submit(queue, key, [(number, sealed.send(number)) for number in range(MIN_BATCH - 1)], _START)
        before = queue.list_released()
        longer = submit(queue, key, [(MIN_BATCH, sealed.wrap(sealed.seal(MIN_BATCH) + b"0"))], _START)
        queue.release_due(sealed.round.closes_at, 0)
        return [
            (before == [Released("rnd_audit", State.OPEN, 0)], "the number of reports is public before the release"),
            (longer == [Verdict.WRONG_LENGTH], "a sealed report of another length is stored"),
            (queue.load_batch(sealed.round) == [], "a release has fewer than min_batch reports"),
        ]


def _release_twice(path: ReleasePath, file: Path) -> list[tuple[bool, str]]:
    sealed = SealedRound(path)
    queue, key = open_queue(path, file, sealed)
    submit(queue, key, [(number, sealed.send(number)) for number in range(TARGET_REPORTS)], _START)
    queue.release_due(_START, 0)
    first = queue.load_batch(sealed.round)
    late = submit(queue, key, [(TARGET_REPORTS, sealed.wrap(sealed.seal(TARGET_REPORTS)))], _START)
    queue.close()
    with closing(path.queue(file)) as queue:  # another process
        again = queue.release_due(sealed.round.closes_at, 0)
        repeated = queue.load_batch(sealed.round)
        queue.end("rnd_audit", State.ACKNOWLEDGED)
        last = queue.release_due(sealed.round.closes_at, 0)
        after = queue.load_batch(sealed.round)
    return [
        (len(first) == TARGET_REPORTS, "a full round is not released whole"),
        (late == [Verdict.CLOSED], "a round accepts a report after its release"),
        (not again and repeated == first, "a round is released a second time"),
        (not last and not after, "a round is released again after the service has it"),
    ]


# ---- the service ----


def check_batches(path: ReleasePath, _setting: Setting) -> list[Finding]:
    """Check that the service accepts one signed batch of a round, with `min_batch` reports of the round's length."""
    private_key, public_key = generate_signing_key_pair()
    sealed = SealedRound(path)
    stored = ServiceRound(id="rnd_audit", min_batch=MIN_BATCH, target_reports=MIN_BATCH, spec_wire=to_wire(SPEC))
    dataset = Dataset(id=DATASET_ID, shuffler={"public_key": b64encode(public_key).decode()})
    reports = [sealed.seal(number) for number in range(MIN_BATCH)]
    sign = partial(sign_release, private_key=private_key)
    cases = {
        "a batch with fewer than min_batch reports": sign("rnd_audit", reports[1:]).body,
        "a batch of another round": sign("rnd_other", reports).body,
        "a batch with another key": sign_release("rnd_audit", reports, generate_signing_key_pair()[0]).body,
        "a batch with a replaced report": sign("rnd_audit", reports).body[: -len(reports[0])] + reports[0],
        "a truncated batch": sign("rnd_audit", reports).body[:-1],
        "a batch of another length": sign("rnd_audit", [each + b"0" for each in reports]).body,
    }
    why = "" if _accepts(path, stored, dataset, sign("rnd_audit", reports).body) else "a sound batch is refused"
    for name, body in cases.items():
        why = why or (f"{name} is accepted" if _accepts(path, stored, dataset, body) else "")
    why = why or ("a second batch of a round is accepted" if _accepts_twice(path) else "")
    claim = "the service accepts one signed batch of a round, with at least min_batch reports of one length"
    return [Finding("batches", claim, "walk", len(cases) + 2, holds=not why, why=why)]


def _accepts(path: ReleasePath, stored: ServiceRound, dataset: Dataset, body: bytes) -> bool:
    with closing(path.reader(stored, dataset, MemoryLimit(1 << 20, "no scratch space"))) as reader:
        try:
            reader.feed(body)
            reader.finish()
        except BatchRefused:
            return False
        return True


def _accepts_twice(path: ReleasePath) -> bool:
    """Return whether the database takes a second, different batch of a round."""
    with temporary_database() as database:
        caller, now = new_caller(database, "audit of batches"), database.clock()
        with database.transaction() as session:
            dataset = datasets.create(
                session,
                caller,
                name="audit",
                trust=Trust.SHUFFLED,
                features=FEATURES,
                epsilon_nano=8 * NANO,
                min_reports=1,
                keep_reports=False,
                max_datasets=1,
                now=now,
                shuffled=(8 * NANO, 10**15),
                shuffler=Shuffler("audit", "https://shuffler.example", ""),
            )
            terms = ReleaseTerms(MIN_BATCH, NANO, 10**12)
            opened = rounds.open_standalone(
                session,
                caller,
                dataset,
                SPEC,
                CollectionTarget(TARGET_REPORTS, 1, 3600, terms),
                max_open_rounds=1,
                now=now,
                keyring=lambda: Keyring((bytes(32),)),
            )
            path.receive_batch(session, opened.id, 1, b"first".ljust(32), [(1, b"first")], now=now)
            try:
                path.receive_batch(session, opened.id, 1, b"second".ljust(32), [(1, b"second")], now=now)
            except (Conflict, RoundClosed):
                return False
            return True


CHECKS: tuple[Check, ...] = (
    Check("sealed reports", partial(check_lengths, RELEASE_PATH)),
    Check("shuffler order", partial(check_order, RELEASE_PATH)),
    Check("shuffler tables", partial(check_tables, RELEASE_PATH)),
    Check("forwarders", partial(check_forwarders, RELEASE_PATH)),
    Check("shuffler releases", partial(check_releases, RELEASE_PATH)),
    Check("batches", partial(check_batches, RELEASE_PATH)),
)
