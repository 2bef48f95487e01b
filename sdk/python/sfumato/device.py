"""A device: answers the rounds its user's cap allows, each once, and resends the same bytes.

    fetch ──► own draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► remember ──► send
                                                                               (on disk)

Nothing the service says is taken on trust: the cost of a round is computed here from its
published thresholds, what was spent is what this device remembers to have answered, and a
round that was answered is never perturbed again, whatever the record is by then.
"""

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sfumato import mechanisms
from sfumato._http import Http
from sfumato.accounting import NANO, format_epsilon, parse_epsilon
from sfumato.dry_runs import DeviceDryRun, Prospect, share_asked
from sfumato.encodings import scale, symbol
from sfumato.entropy import Entropy, SystemEntropy, below, word
from sfumato.errors import ApiProblem, CapExceeded, InvalidPoint, InvalidSpec, RoundRefused, SfumatoError
from sfumato.specs import Feature, RoundSpec, round_spec_from_wire, to_wire
from sfumato.store import FileStore, Memo, Memory, MemoState, Store

if TYPE_CHECKING:
    import httpx

Record = Sequence[float] | Mapping[str, float]

MAX_OPEN_ROUNDS = 64
MAX_ANSWER_BYTES = 1 << 20
DEFAULT_LOOK_AGAIN_SECONDS = 60.0

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # goes into paths, and comes from the service


class Outcome(StrEnum):
    """What became of a round on this device."""

    SENT = "sent"  # the service acknowledged the report just now
    ALREADY_ANSWERED = "already_answered"  # in an earlier call
    NOT_DRAWN = "not_drawn"  # the round asks other devices
    TOO_LATE = "too_late"  # the round closed before the report came; it was charged
    REFUSED = "refused"  # by this device or by the service; the error says why
    NO_OPEN_ROUND = "no_open_round"  # the dataset asks nothing now


@dataclass(frozen=True, slots=True)
class Answered:
    """One open round, and what became of it; `epsilon` is what it cost this device, 0 where it was not answered."""

    round_id: str
    outcome: Outcome
    epsilon: float = 0.0
    error: SfumatoError | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one call of `Device.report` did.

    Attributes
    ----------
    outcome : Outcome
        The first of sent, too_late, already_answered, not_drawn that some round had;
        no_open_round where none was open.
    rounds : tuple of Answered
        Every open round, in the order the service lists them, then the reports to earlier
        rounds that were resent.
    retry_after_seconds : float or None
        When to look again, where no round is open.
    """

    outcome: Outcome
    rounds: tuple[Answered, ...] = ()
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _OpenRound:
    round_id: str
    collection_id: str
    epsilon: object  # as the service declares it
    spec_wire: object


class Device:
    """One person's device, for one dataset.

    Parameters
    ----------
    url : str
        Where the service is.
    key : str
        A key with the scope `device`.
    dataset_id : str
    cap : float, int, str or Decimal
        The user's own: the most epsilon this device ever spends on this dataset, in
        [1e-6, 32], at most nine decimals. Whatever the service asks, more is not sent.
    store : str, Path or Store
        Where the device remembers; a path becomes a FileStore.
    features : sequence of Feature, optional
        What the app was built for; a round with any other features or bounds is refused.
    entropy : Entropy
        Every coin the device tosses.
    timeout_seconds : float
        Longest wait for one answer of the service.
    retry_seconds : float
        How long one request is tried again; 0 tries once.
    transport : httpx.BaseTransport, optional
        In place of the network, for instance one that many devices share; the caller's to close.

    Raises
    ------
    InvalidEpsilon
        The cap is no epsilon.

    Examples
    --------
    Somebody opened a round of epsilon 1 over `east` and `north`; this device answers it once.

    >>> from sfumato import Device, MemoryStore
    >>> with Device(url, key, dataset_id, cap=2, store=MemoryStore()) as device:
    ...     first = device.report({"east": 3.2, "north": 7.9})
    ...     again = device.report({"east": 3.2, "north": 7.9})
    ...     spent = device.spent
    >>> str(first.outcome), str(again.outcome), spent
    ('sent', 'already_answered', 1.0)
    """

    def __init__(
        self,
        url: str,
        key: str,
        dataset_id: str,
        *,
        cap: int | float | str | Decimal,
        store: str | Path | Store,
        features: Sequence[Feature] | None = None,
        entropy: Entropy | None = None,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._cap_nano = parse_epsilon(cap)
        self._dataset_id = _checked_id(dataset_id)
        self._store = FileStore(store) if isinstance(store, str | Path) else store
        self._features = None if features is None else tuple(features)
        self._entropy = entropy or SystemEntropy()
        self._http = Http(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=MAX_ANSWER_BYTES,
            transport=transport,
        )
        self._etag: str | None = None
        self._open: tuple[_OpenRound, ...] = ()
        self._look_again_seconds = DEFAULT_LOOK_AGAIN_SECONDS

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; what is pending stays in the store."""
        self._http.close()

    def report(self, record: Record) -> Receipt:
        """Answer every open round that asks this device, and resend what is pending.

        Parameters
        ----------
        record : sequence or mapping of float
            One value for each feature, in the features' units: in the features' order,
            or by their names. It is clipped to the public bounds, perturbed, and kept
            nowhere.

        Returns
        -------
        Receipt

        Raises
        ------
        CapExceeded, RoundRefused, InvalidSpec, InvalidPoint, ApiProblem
            Every open round that was left was refused for such a reason (the first is
            raised) and no report arrived; where one did, the reasons stand in the receipt.
        StoreUnusable
            The device cannot remember, so it does not answer.
        Unreachable
            The service does not answer; what was perturbed already is kept, and sent by
            the next call.
        """
        rounds = self._fetch()
        with self._store.changing(self._dataset_id) as memory:
            decided = {asked.round_id: self._decide(memory, asked, record) for asked in rounds}
            waiting = [memo for memo in _pending(memory) if not _is_refused(decided.get(memo.round_id))]
        for memo in waiting:
            decided[memo.round_id] = self._send(memo)
        outcome = _outcome(decided.values(), bool(rounds))
        return Receipt(outcome, tuple(decided.values()), None if rounds else self._look_again_seconds)

    def dry_run(self, record: Record) -> DeviceDryRun:
        """What `report` would do now: the rounds are fetched, nothing is sent and nothing remembered.

        Where a round's collection was never answered here, this device's draw for it is not
        made yet: it is told as if every such round asked this device, with the chance that it does.

        Parameters
        ----------
        record : sequence or mapping of float
            As `report` takes it.

        Raises
        ------
        ApiProblem, Unreachable, StoreUnusable
            What is open, or what was answered, cannot be read.

        Examples
        --------
        >>> from sfumato import Device, MemoryStore
        >>> with Device(url, key, dataset_id, cap=2, store=MemoryStore()) as device:
        ...     seen = device.dry_run({"east": 3.2, "north": 7.9})
        ...     sent = device.report({"east": 3.2, "north": 7.9})
        >>> [(each.would, each.epsilon) for each in seen.rounds], seen.epsilon, seen.spent
        ([('send', 1.0)], 1.0, 0.0)
        >>> str(sent.outcome)
        'sent'
        """
        rounds = self._fetch()
        memory = self._store.read(self._dataset_id)
        spent_nano = memory.spent_nano
        seen = tuple(self._prospect(memory, asked, record) for asked in rounds)
        return DeviceDryRun(seen, (memory.spent_nano - spent_nano) / NANO, spent_nano / NANO, self._cap_nano / NANO)

    def pending(self) -> tuple[str, ...]:
        """The rounds answered here whose reports the service has not acknowledged yet."""
        return tuple(memo.round_id for memo in _pending(self._store.read(self._dataset_id)))

    def flush(self) -> tuple[Answered, ...]:
        """Resend what is pending, and only that; raises Unreachable, StoreUnusable or ApiProblem."""
        sent = tuple(self._send(memo) for memo in _pending(self._store.read(self._dataset_id)))
        for answered in sent:
            if answered.error is not None:
                raise answered.error
        return sent

    @property
    def spent(self) -> float:
        """The epsilon this device has answered for so far in this dataset."""
        return self._store.read(self._dataset_id).spent_nano / NANO

    # ---- what the service asks ----

    def _fetch(self) -> tuple[_OpenRound, ...]:
        headers = {"If-None-Match": self._etag} if self._etag else {}
        answer = self._http.request("GET", f"datasets/{self._dataset_id}/round", headers=headers)
        if answer.status != 304:
            self._open = _open_rounds(answer.object())
            self._etag = answer.headers.get("ETag")
            wait = answer.retry_after_seconds
            self._look_again_seconds = DEFAULT_LOOK_AGAIN_SECONDS if wait is None else wait
        return self._open

    # ---- what the device decides; only here is anything drawn ----

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        try:
            spec = round_spec_from_wire(asked.spec_wire)
            memo = memory.memos.get(asked.round_id)
            if memo is not None:
                if (memo.collection_id, memo.spec_hash) != (asked.collection_id, _spec_hash(spec)):
                    raise RoundRefused(f"{asked.round_id} is no longer the round this device answered")
                return Answered(asked.round_id, Outcome.ALREADY_ANSWERED, memo.epsilon_nano / NANO)
            epsilon_nano = self._cost(asked, spec)
            if asked.collection_id not in memory.draws:
                memory.draws[asked.collection_id] = word(self._entropy)
            if not spec.draw.holds(memory.draws[asked.collection_id]):
                return Answered(asked.round_id, Outcome.NOT_DRAWN)
            if memory.spent_nano + epsilon_nano > self._cap_nano:
                raise CapExceeded(asked_nano=epsilon_nano, spent_nano=memory.spent_nano, cap_nano=self._cap_nano)
            memory.memos[asked.round_id] = self._perturbed(asked, spec, epsilon_nano, record)
            return Answered(asked.round_id, Outcome.ALREADY_ANSWERED, epsilon_nano / NANO)
        except SfumatoError as error:
            return Answered(asked.round_id, Outcome.REFUSED, error=error)

    def _prospect(self, memory: Memory, asked: _OpenRound, record: Record) -> Prospect:
        """What a round would come to, by a copy of the memory, which it changes."""
        was_answered, is_drawn, chance = asked.round_id in memory.memos, asked.collection_id in memory.draws, 1.0
        try:
            spec = round_spec_from_wire(asked.spec_wire)
            if not is_drawn:
                memory.draws[asked.collection_id], chance = spec.draw.lo, share_asked(spec)
        except SfumatoError as error:
            return Prospect(asked.round_id, "refuse", error=error)
        decided = self._decide(memory, asked, record)
        if not is_drawn:
            del memory.draws[asked.collection_id]  # the collection's next round is told of alone, too
        if decided.error is not None:
            return Prospect(asked.round_id, "refuse", chance=chance, error=decided.error)
        if was_answered or decided.outcome is Outcome.NOT_DRAWN:
            return Prospect(asked.round_id, "already_answered" if was_answered else "not_drawn")
        body = _body(memory.memos[asked.round_id])
        return Prospect(asked.round_id, "send", decided.epsilon, chance, body)

    def _cost(self, asked: _OpenRound, spec: RoundSpec) -> int:
        """What the round really costs; raises where it is not what it says or the app expects."""
        if self._features is not None and spec.features != self._features:
            raise RoundRefused(f"{asked.round_id} asks for other features than this app was built for")
        if isinstance(asked.epsilon, str):
            raise InvalidSpec("a round's epsilon is a number")
        declared_nano = parse_epsilon(cast(float, asked.epsilon))
        epsilon_nano = mechanisms.epsilon_nano(spec.mechanism)
        if declared_nano < epsilon_nano:
            declared, real = format_epsilon(declared_nano), format_epsilon(epsilon_nano)
            raise RoundRefused(f"{asked.round_id} declares epsilon {declared} and costs {real}")
        return epsilon_nano

    def _perturbed(self, asked: _OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        point = scale(spec.features, _in_order(spec.features, record))
        slot = below(self._entropy, spec.encoding.n_slots)
        value = mechanisms.perturb(spec.mechanism, symbol(spec.encoding, point, slot), self._entropy)
        return Memo(
            round_id=asked.round_id,
            collection_id=asked.collection_id,
            epsilon_nano=epsilon_nano,
            spec_hash=_spec_hash(spec),
            state="pending",
            report_id=b"".join(word(self._entropy).to_bytes(8, "little") for _ in range(2)).hex(),
            slot=slot,
            value=value.hex(),
        )

    # ---- what is sent: always the bytes of the memo ----

    def _send(self, memo: Memo) -> Answered:
        epsilon = memo.epsilon_nano / NANO
        try:
            self._http.request("POST", f"rounds/{memo.round_id}/reports", json_body=_body(memo))
        except ApiProblem as problem:
            if problem.code == "round_closed":
                self._settle(memo, "closed")
                return Answered(memo.round_id, Outcome.TOO_LATE, epsilon)
            if _is_about_the_report(problem):
                self._settle(memo, "refused")
            return Answered(memo.round_id, Outcome.REFUSED, epsilon, problem)
        self._settle(memo, "acknowledged")
        return Answered(memo.round_id, Outcome.SENT, epsilon)

    def _settle(self, memo: Memo, state: MemoState) -> None:
        with self._store.changing(self._dataset_id) as memory:
            memory.memos[memo.round_id] = replace(memo, state=state, slot=None, value=None)


def _body(memo: Memo) -> dict[str, object]:
    value = base64.b64encode(bytes.fromhex(cast(str, memo.value))).decode()
    return {"report_id": memo.report_id, "slot": memo.slot, "value": value}


def _spec_hash(spec: RoundSpec) -> str:
    text = json.dumps(to_wire(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _pending(memory: Memory) -> list[Memo]:
    return [memo for memo in memory.memos.values() if memo.state == "pending"]


def _is_about_the_report(problem: ApiProblem) -> bool:
    """Whether sending it again can only fail again; not so for a key, a limit or a fault of the service."""
    return 400 <= problem.status < 500 and problem.status not in {401, 403, 408, 429}


def _is_refused(answered: Answered | None) -> bool:
    return answered is not None and answered.outcome is Outcome.REFUSED


def _outcome(rounds: Collection[Answered], is_open: bool) -> Outcome:
    """The most telling outcome; raises the first error where no report arrived."""
    outcomes = {answered.outcome for answered in rounds}
    errors = [answered.error for answered in rounds if answered.error is not None]
    if errors and not outcomes & {Outcome.SENT, Outcome.TOO_LATE}:
        raise errors[0]
    if not is_open:
        return Outcome.NO_OPEN_ROUND
    order = (Outcome.SENT, Outcome.TOO_LATE, Outcome.ALREADY_ANSWERED, Outcome.NOT_DRAWN)
    return next(outcome for outcome in order if outcome in outcomes)


def _in_order(features: Sequence[Feature], record: Record) -> Sequence[float]:
    if not isinstance(record, Mapping):
        return record
    names = [feature.name for feature in features]
    if set(record) != set(names):
        raise InvalidPoint(f"a record has the features {', '.join(names)}")
    return [record[name] for name in names]


def _checked_id(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidSpec("an id is 1 to 64 letters, digits, _ and -")
    return value


def _open_rounds(wire: Mapping[str, Any]) -> tuple[_OpenRound, ...]:
    """Read the list of open rounds; raises InvalidSpec. The specs are read one by one, later."""
    rounds = wire.get("rounds")
    if not isinstance(rounds, list) or len(rounds) > MAX_OPEN_ROUNDS:
        raise InvalidSpec(f"open rounds are a list of at most {MAX_OPEN_ROUNDS}")
    if not all(isinstance(item, Mapping) for item in rounds):
        raise InvalidSpec("an open round is an object")
    read = tuple(
        _OpenRound(
            _checked_id(item.get("id")), _checked_id(item.get("collection_id")), item.get("epsilon"), item.get("spec")
        )
        for item in rounds
    )
    if len({asked.round_id for asked in read}) != len(read):
        raise InvalidSpec("an open round is listed twice")
    return read
