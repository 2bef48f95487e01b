"""Shuffled rounds: intake of sealed reports by the shuffler, their opening, and the way to a map."""

import base64
import json
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from benchmarks.speed.harness.measurement import Disagreement, Measurement, Setting, alternate, compare, seconds
from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.plan import Collected, drive
from sfumato.device.sealing import RoundKeyPair, generate_round_key_pair, seal, wrap
from sfumato.privacy.entropy import below_many
from sfumato.records.encodings import symbols
from sfumato.specs import Feature, RoundSpec, ShiftedGrid, to_wire
from shuffler.intake import MAX_GROUP
from shuffler.queue import Queue, Sender, Submission, Verdict
from shuffler.rounds import Round, parse_round
from workers.aggregation.aggregate import aggregate
from workers.aggregation.open_batch import open_batch

N_REPORTS, QUICK_REPORTS = 20_000, 4_000
STORED_PER_SECOND = 8_000.0  # bar of the intake, per second of CPU time
OPENED_SHARE = 0.8  # bar: share of the rate of the key exchange alone
MILLION_SECONDS = 600.0  # bar: a million sealed reports to a map, on two cores
PARAMETERS = ShiftedGrid(epsilon=4.0, clusters=2)
FEATURES = (Feature("east", 0.0, 1.0), Feature("north", 0.0, 1.0))


class Stored(NamedTuple):
    """The batch of a shuffler."""

    batch: list[bytes]
    cpu_seconds: float  # CPU time of `Queue.store`
    wrapping_seconds: float  # time in which devices add the outer layers


@dataclass(frozen=True)
class Sealed:
    """A round and its sealed reports."""

    spec: RoundSpec
    found: Round
    keys: RoundKeyPair
    reports: list[bytes]

    @classmethod
    def sample(cls, n_reports: int) -> "Sealed":
        """Return the reports of devices in two clusters."""
        spec, entropy = next(start(PARAMETERS, FEATURES, n_reports)), SeededEntropy(1)
        points = np.random.default_rng(2).normal(0.3, 0.05, (n_reports, 2)).clip(0, 1)
        points[::2] = 1 - points[::2]
        slots = below_many(entropy, spec.encoding.n_slots, n_reports)
        values = spec.mechanism.perturb_many(symbols(spec.encoding, points, slots), entropy)
        keys = generate_round_key_pair()
        members = {
            "id": "rnd_1",
            "spec": to_wire(spec),
            "target_reports": n_reports,
            "min_batch": 1,
            "closes_at": datetime.fromtimestamp(time.time() + 86_400, UTC).isoformat(),
            "hpke_public_key": base64.b64encode(keys.public_key).decode(),
        }
        found = parse_round(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())
        reports = [
            seal(secrets.token_bytes(16), slot, value.tobytes(), found.id, found.document, keys.public_key)
            for slot, value in zip(slots.tolist(), values, strict=True)
        ]
        return cls(spec, found, keys, reports)

    def stored(self, folder: Path) -> Stored:
        """Return the batch of a shuffler that stored all reports in groups."""
        with closing(Queue(Path(tempfile.mkdtemp(dir=folder)) / "shuffler.db")) as queue:
            key = queue.add_sender(Sender("app", "ds_1", True))
            queue.add_round("ds_1", self.found)
            announced = queue.find_announced(self.found.id, "ds_1")
            assert key is not None
            assert announced is not None
            assert announced.outer_public_key is not None
            outer, began = announced.outer_public_key, time.perf_counter()
            sent = [
                Submission(key, str(number), self.found.id, wrap(sealed, self.found.id, outer))
                for number, sealed in enumerate(self.reports)
            ]
            wrapping, before = time.perf_counter() - began, time.process_time()
            for first in range(0, len(sent), MAX_GROUP):
                if set(queue.store(sent[first : first + MAX_GROUP], time.time())) != {Verdict.STORED}:
                    raise Disagreement("the shuffler refused a report")
            used = time.process_time() - before
            queue.release_due(time.time(), 0)
            return Stored(queue.load_batch(self.found), used, wrapping)

    def opened(self, batch: list[bytes], n_processes: int | None) -> NDArray[np.uint8]:
        """Return the packed reports of a batch."""
        found = open_batch(
            [b"".join(batch)], len(batch), self.spec.mechanism.value_bytes, self.found.id, self.found.document,
            self.keys.private_key, n_processes=n_processes,
        )  # fmt: skip
        if len(found) != len(batch):
            raise Disagreement("some reports did not open")
        return found

    def mapped(self, packed: NDArray[np.uint8]) -> int:
        """Return the number of clusters of the map."""
        tally = aggregate(self.spec, lambda: [packed.tobytes()], n_expected=len(packed)).tally
        return drive(start(PARAMETERS, FEATURES, len(packed)), lambda spec: Collected(spec, tally)).n_clusters


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield intake, opening, and the way from the intake to a map."""
    n_reports = QUICK_REPORTS if setting.quick else N_REPORTS
    sealed = Sealed.sample(n_reports)
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as name:
        folder = Path(name)
        setting.progress("  shuffling: intake")
        yield compare(
            f"intake of the shuffler, {n_reports:,} sealed reports",
            f"{STORED_PER_SECOND:,.0f} a second of CPU time",
            alternate(lambda: n_reports / sealed.stored(folder).cpu_seconds, lambda: STORED_PER_SECOND, setting.turns),
            unit="reports/s",
            more_is_better=True,
            bar=1.0,
            note=f"outer layer removed, stored durably in groups of {MAX_GROUP}; without HTTP",
        )
        setting.progress("  shuffling: opening")
        yield _opening(setting, sealed)
        setting.progress("  shuffling: to a map")

        def whole() -> float:
            began = time.perf_counter()
            stored = sealed.stored(folder)
            if sealed.mapped(sealed.opened(stored.batch, 2)) != PARAMETERS.clusters:
                raise Disagreement("the map has another number of clusters")
            return time.perf_counter() - began - stored.wrapping_seconds

        limit = MILLION_SECONDS * n_reports / 1_000_000
        yield compare(
            f"{n_reports:,} sealed reports to a map",
            f"{limit:g} s",
            alternate(whole, lambda: limit, min(3, setting.turns)),
            bar=1.0,
            note="intake, release, opening in two processes, counting, map; a share of ten minutes for a million",
        )


def _opening(setting: Setting, sealed: Sealed) -> Measurement:
    """Compare the opening of reports in one process with the key exchange alone."""
    private, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    batch, n_reports = sealed.reports, len(sealed.reports)

    def exchange() -> None:
        for _ in range(n_reports):
            private.exchange(other)

    measured = alternate(
        lambda: n_reports / seconds(lambda: sealed.opened(batch, 1)),
        lambda: n_reports / seconds(exchange),
        setting.turns,
    )
    note = "on one core; HPKE needs one exchange, a key derivation and a decryption for each report"
    return compare(
        f"opening of {n_reports:,} sealed reports", "X25519 exchanges alone", measured, unit="reports/s",
        more_is_better=True, bar=OPENED_SHARE, note=note,
    )  # fmt: skip
