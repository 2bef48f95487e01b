"""Device of one person: answers each round once, within the user's cap, and resends the same bytes.

    fetch ──► draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► store ──► send
                                                                           (on disk)

A report is settled by the service's receipt or by one of its final problems. After any other answer it is kept, and the
next call sends the same bytes.

A device does not trust the service. It computes the cost of a round from the published thresholds,
takes the spent epsilon from its own store, counts periods by its own clock, and never perturbs a
second report for the same round, even if the record has changed.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from sfumato.device.caps import Caps, PeriodCap
from sfumato.device.checks import (
    Record,
    RecordCheck,
    Supported,
    check_record,
    part_for,
)
from sfumato.device.dry_runs import DeviceDryRun, RoundPreview, participating_share
from sfumato.device.open_rounds import OpenRound, check_id, parse_open_rounds, refuse_shuffled
from sfumato.device.outcomes import Outcome, Receipt, RoundOutcome, is_refused, overall_outcome
from sfumato.device.store import FileStore, Memo, Memory, MemoState, Store
from sfumato.errors import ApiProblem, InvalidSpec, RoundRefused, SfumatoError
from sfumato.privacy.accounting import NANO, parse_epsilon
from sfumato.privacy.entropy import Entropy, SystemEntropy, below, word
from sfumato.records.outside import check_outside, encode
from sfumato.specs import Feature, RoundSpec, round_spec_from_wire, to_wire
from sfumato.specs.attributes import Attribute
from sfumato.transport.exchange import Request
from sfumato.transport.http import Http, PoolSettings
from sfumato.transport.receipts import check_receipt, settled_state

if TYPE_CHECKING:
    import httpx

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MAX_RESPONSE_BYTES = 1 << 20
DEFAULT_POLL_SECONDS = 60.0


def _in_turn(
    method: "Callable[Concatenate[Device, Arguments], Result]",
) -> "Callable[Concatenate[Device, Arguments], Result]":
    """Let calls of several threads run one after the other on a device."""

    def run(self: "Device", /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self._turn:
            return method(self, *arguments, **named)

    update_wrapper(run, method)
    return run


class Device:
    """One person's device, for one dataset.

    Parameters
    ----------
    url : str
        URL of the service.
    key : str
        Bearer key with the scope `device`.
    dataset_id : str
    cap : float, int, str or Decimal
        The user's limit: the total epsilon that this device spends on this dataset, in
        [1e-6, 32], at most nine decimals.
    store : str, Path or Store
        The device's memory. A path becomes a FileStore.
    cap_per_period : tuple of str and float, optional
        A second limit, such as `("week", 1)`: the epsilon that this device spends on this dataset within a "day",
        "week", "month", "quarter" or "year" in UTC. The device counts by its own clock, and its periods never go
        back. Without it, a service can spend the whole cap in a day.
    features : sequence of Feature, optional
        The features that the app supports, as the dataset has them. The device rejects rounds with other features or
        bounds. Without them, it rejects rounds with a place on Earth, for every record. It refuses degrees that are no
        place, so a service could otherwise call a feature a latitude and learn whether its value is beyond 90.
    attributes : sequence of Attribute
        The attributes that the app reports, as the dataset declares them. The device rejects rounds that need others,
        or that declare them otherwise, for every record. So a service cannot learn whether a value is in another
        vocabulary. With attributes, a record is a mapping that has their values, too: text, numbers, or None for a
        missing value.
    entropy : Entropy
        Source of all random numbers of the device.
    on_outside : callable, optional
        Called with the names of the features, once per device object, when a record outside of the bounds was
        perturbed. It is for the developer: units or the order of values may be wrong. Do not log or send
        these names in an app that people use, because they are about their record.
    accept_kept_reports : bool
        Whether the device answers rounds that keep its report after the tally (`keep_reports`). Only the user may
        decide it. The device refuses these rounds otherwise, and rounds that do not state it.
    timeout_seconds : float
        Timeout of one response, seconds.
    retry_seconds : float
        Time during which a request is retried, seconds. 0 sends it once.
    transport : httpx.BaseTransport, optional
        Replacement of the network, such as one that many devices share. The caller closes it.
    clock : callable
        Clock for `cap_per_period`, in seconds since 1970-01-01 UTC. Replace it in tests and simulations only.

    Raises
    ------
    InvalidEpsilon, InvalidSpec
        A cap is not a valid epsilon, its period is not known, or an attribute is not declared.

    Examples
    --------
    A round with ε = 1 over `east` and `north` is open. The device answers it once.

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
        cap_per_period: tuple[str, int | float | str | Decimal] | None = None,
        features: Sequence[Feature] | None = None,
        attributes: Sequence[Attribute] = (),
        entropy: Entropy | None = None,
        on_outside: Callable[[tuple[str, ...]], None] | None = None,
        accept_kept_reports: bool = False,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        period = None if cap_per_period is None else PeriodCap.read(cap_per_period)
        self._caps = Caps(parse_epsilon(cap), period, clock)
        self._dataset_id = check_id(dataset_id)
        self._store = FileStore(store) if isinstance(store, str | Path) else store
        self._supported = Supported.of(features, attributes, keeps_reports=accept_kept_reports)
        self._entropy = entropy or SystemEntropy()
        self._on_outside = on_outside
        self._http = Http(url, key, PoolSettings(timeout_seconds, retry_seconds, MAX_RESPONSE_BYTES), transport)
        self._turn = threading.RLock()
        self._etag: str | None = None
        self._open: tuple[OpenRound, ...] = ()
        self._poll_seconds = DEFAULT_POLL_SECONDS

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Pending reports remain in the store."""
        self._http.close()

    @_in_turn
    def report(self, record: Record) -> Receipt:
        """Answer every open round that selects this device, and resend pending reports.

        Concurrent calls of several threads run one after the other.

        Parameters
        ----------
        record : mapping, named tuple, series, sequence or array of float
            One value for each feature, in the features' units. Names are matched; values without
            names are assumed to have the features' order. The device perturbs the record and does not
            store it. A record outside of the bounds is reported as outside, or moved to them, as the
            round states; the receipt names the features. A device that a round does not select does not
            read the record, so use `check` to find an invalid record at once.

        Returns
        -------
        Receipt

        Raises
        ------
        CapExceeded, RoundRefused, InvalidSpec, InvalidPoint, ApiProblem
            No report arrived, and rounds were rejected; this is the first reason. If a report
            arrived, the receipt has the reasons.
        StoreUnusable
            The store cannot be read or written, so the device sends nothing.
        Unreachable
            The service does not respond. The next call sends the pending reports.
        """
        rounds = self._fetch()
        with self._store.changing(self._dataset_id) as memory:
            outcomes = {each.round_id: self._decide(memory, each, record) for each in rounds}
            pending = [memo for memo in _pending(memory) if not is_refused(outcomes.get(memo.round_id))]
        for memo in pending:
            decided = outcomes.get(memo.round_id)
            outcomes[memo.round_id] = replace(self._send(memo), outside=() if decided is None else decided.outside)
        self._inform_outside(tuple(outcomes.values()))
        outcome = overall_outcome(outcomes.values(), bool(rounds))
        wait = None if rounds else self._poll_seconds
        place = str(self._store.path) if isinstance(self._store, FileStore) else None
        return Receipt(outcome, tuple(outcomes.values()), wait, place)

    def _inform_outside(self, outcomes: tuple[RoundOutcome, ...]) -> None:
        """Inform the developer about a record outside of the bounds, once."""
        names = Receipt(Outcome.SENT, outcomes).outside
        if names and self._on_outside is not None:
            tell, self._on_outside = self._on_outside, None
            tell(names)

    @_in_turn
    def check(self, record: Record) -> RecordCheck:
        """Check a record against the declared attributes, and against the features of the app or of the open rounds.

        The check sends no report, spends nothing and reads neither the store nor the draws. Call it
        while you develop an app, or before you store a record.

        Parameters
        ----------
        record : mapping, named tuple, series, sequence or array of float
            The record that `report` would use.

        Returns
        -------
        RecordCheck

        Raises
        ------
        InvalidPoint
            A name is missing, repeated or unknown, or a value is not a finite number or is refused by its attribute.
        InvalidSpec
            The app passed no features, and no round is open.
        ApiProblem, Unreachable
            The open rounds cannot be read.

        Examples
        --------
        >>> from sfumato import Device, Feature, MemoryStore
        >>> features = [Feature("east", 0, 10), Feature("north", 0, 10)]
        >>> with Device(url, key, dataset_id, cap=2, store=MemoryStore(), features=features) as device:
        ...     device.check({"east": 3.2, "north": 70.9}).outside
        ('north',)
        """
        if self._supported.features is not None:
            return check_record(self._supported.features, record, self._supported.attributes)
        specs = [round_spec_from_wire(each.spec_wire) for each in self._fetch()]
        checks = [check_record(spec.features, record, self._supported.attributes) for spec in specs]
        if not checks:
            raise InvalidSpec("the features are unknown while no round is open: pass `features` to the device")
        return checks[0]

    @_in_turn
    def dry_run(self, record: Record) -> DeviceDryRun:
        """Return what `report` would do now. Fetch the open rounds, send no report and store nothing.

        If the device has no draw for a round's collection yet, the preview assumes that the round
        selects the device and states the probability.

        Parameters
        ----------
        record : mapping, named tuple, series, sequence or array of float
            The record that `report` would use.

        Raises
        ------
        ApiProblem, Unreachable, StoreUnusable
            The open rounds or the store cannot be read.

        Examples
        --------
        >>> from sfumato import Device, MemoryStore
        >>> with Device(url, key, dataset_id, cap=2, store=MemoryStore()) as device:
        ...     preview = device.dry_run({"east": 3.2, "north": 7.9})
        ...     sent = device.report({"east": 3.2, "north": 7.9})
        >>> [(each.would, each.epsilon) for each in preview.rounds], preview.epsilon, preview.spent
        ([('send', 1.0)], 1.0, 0.0)
        >>> str(sent.outcome)
        'sent'
        """
        rounds = self._fetch()
        memory = self._store.read(self._dataset_id)
        spent, in_period, period = memory.spent_nano, self._spent_in_period(memory), self._caps.period
        previews = tuple(self._preview(memory, each, record) for each in rounds)
        whole = DeviceDryRun(
            previews, (memory.spent_nano - spent) / NANO, spent / NANO, self._caps.lifetime_nano / NANO
        )
        if period is None:
            return whole
        return replace(whole, period=period.period, spent_in_period=in_period, cap_in_period=period.cap_nano / NANO)

    def pending(self) -> tuple[str, ...]:
        """Return the ids of answered rounds with reports that the service has not acknowledged."""
        return tuple(memo.round_id for memo in _pending(self._store.read(self._dataset_id)))

    @_in_turn
    def flush(self) -> tuple[RoundOutcome, ...]:
        """Resend pending reports only. Raise Unreachable, StoreUnusable or ApiProblem."""
        outcomes = tuple(self._send(memo) for memo in _pending(self._store.read(self._dataset_id)))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return outcomes

    @property
    def spent(self) -> float:
        """Return the epsilon that this device has spent on this dataset."""
        return self._store.read(self._dataset_id).spent_nano / NANO

    @property
    def spent_in_period(self) -> float | None:
        """Return the epsilon that this device has spent in the current period, or None without `cap_per_period`."""
        return self._spent_in_period(self._store.read(self._dataset_id))

    def _spent_in_period(self, memory: Memory) -> float | None:
        if self._caps.period is None:
            return None
        return self._caps.spent_in_period(memory, self._caps.today(memory)) / NANO

    # ---- fetching open rounds ----

    def _fetch(self) -> tuple[OpenRound, ...]:
        headers = {"If-None-Match": self._etag} if self._etag else {}
        response = self._http.send(Request("GET", f"datasets/{self._dataset_id}/round", headers=headers))
        if response.status != 304 or self._etag is None:  # a device without a list sends no ETag, so 304 is no answer
            listed = response.object()
            refuse_shuffled(listed)
            self._open = parse_open_rounds(listed)
            self._etag = response.headers.get("ETag")
            wait = response.retry_after_seconds
            self._poll_seconds = DEFAULT_POLL_SECONDS if wait is None else wait
        return self._open

    # ---- decisions; only this part draws random numbers ----

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        try:
            spec = round_spec_from_wire(open_round.spec_wire)
            memo = memory.memos.get(open_round.round_id)
            if memo is not None:
                if (memo.collection_id, memo.spec_hash) != (open_round.collection_id, _spec_hash(spec)):
                    raise RoundRefused(f"{open_round.round_id} has changed since this device answered it")
                return RoundOutcome(open_round.round_id, Outcome.ALREADY_ANSWERED, memo.epsilon_nano / NANO)
            epsilon_nano = self._cost(open_round, spec)
            if open_round.collection_id not in memory.draws:
                memory.draws[open_round.collection_id] = word(self._entropy)
            if not spec.participation.holds(memory.draws[open_round.collection_id]):
                return RoundOutcome(open_round.round_id, Outcome.NOT_SELECTED)
            today = self._caps.today(memory)
            self._caps.check(memory, epsilon_nano, today)
            part = part_for(spec, record, self._supported.attributes)
            names = check_outside(spec, part)  # an invalid record uses no word
            memo = self._perturb(open_round, spec, epsilon_nano, part)
            memory.memos[open_round.round_id] = replace(memo, day=today)
            return RoundOutcome(open_round.round_id, Outcome.ALREADY_ANSWERED, epsilon_nano / NANO, outside=names)
        except SfumatoError as error:
            return RoundOutcome(open_round.round_id, Outcome.REFUSED, error=error)

    def _preview(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundPreview:
        """Return the preview of a round. Change `memory`, which must be a copy."""
        was_answered, has_draw = open_round.round_id in memory.memos, open_round.collection_id in memory.draws
        probability = 1.0
        try:
            spec = round_spec_from_wire(open_round.spec_wire)
            if not has_draw:
                memory.draws[open_round.collection_id], probability = spec.participation.lo, participating_share(spec)
        except SfumatoError as error:
            return RoundPreview(open_round.round_id, "refuse", error=error)
        outcome = self._decide(memory, open_round, record)
        if not has_draw:  # the preview of the collection's next round starts without a draw, too
            del memory.draws[open_round.collection_id]
        if outcome.error is not None:
            return RoundPreview(open_round.round_id, "refuse", probability=probability, error=outcome.error)
        if was_answered or outcome.outcome is Outcome.NOT_SELECTED:
            return RoundPreview(open_round.round_id, "already_answered" if was_answered else "not_selected")
        body = self._body(memory.memos[open_round.round_id])
        keep_reports = open_round.keep_reports
        return RoundPreview(open_round.round_id, "send", outcome.epsilon, probability, body, keep_reports)

    def _cost(self, open_round: OpenRound, spec: RoundSpec) -> int:
        """Return the real cost of a round. Raise if the device does not accept the round."""
        return self._supported.cost_nano(open_round, spec)

    def _perturb(self, open_round: OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        slot = below(self._entropy, spec.encoding.n_slots)
        value = spec.mechanism.perturb(encode(spec, record, slot, self._entropy), self._entropy)
        return Memo(
            round_id=open_round.round_id,
            collection_id=open_round.collection_id,
            epsilon_nano=epsilon_nano,
            spec_hash=_spec_hash(spec),
            state="pending",
            report_id=b"".join(word(self._entropy).to_bytes(8, "little") for _ in range(2)).hex(),
            slot=slot,
            value=value.hex(),
        )

    # ---- sending; always the bytes in the store ----

    def _send(self, memo: Memo) -> RoundOutcome:
        epsilon = memo.epsilon_nano / NANO
        try:
            check_receipt(self._http.send(self._request(memo)), memo.round_id, 1)
        except ApiProblem as problem:
            state = settled_state(problem)
            if state is not None:
                self._settle(memo, state)
            if state == "closed":
                return RoundOutcome(memo.round_id, Outcome.TOO_LATE, epsilon)
            return RoundOutcome(memo.round_id, Outcome.REFUSED, epsilon, problem)
        self._settle(memo, "acknowledged")
        return RoundOutcome(memo.round_id, Outcome.SENT, epsilon)

    def _body(self, memo: Memo) -> dict[str, object]:
        value = base64.b64encode(bytes.fromhex(cast(str, memo.value))).decode()
        return {"report_id": memo.report_id, "slot": memo.slot, "value": value}

    def _request(self, memo: Memo) -> Request:
        return Request("POST", f"rounds/{memo.round_id}/reports", json_body=self._body(memo))

    def _settle(self, memo: Memo, state: MemoState) -> None:
        with self._store.changing(self._dataset_id) as memory:
            memory.memos[memo.round_id] = replace(memo, state=state, slot=None, value=None)


def _spec_hash(spec: RoundSpec) -> str:
    text = json.dumps(to_wire(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _pending(memory: Memory) -> list[Memo]:
    return [memo for memo in memory.memos.values() if memo.state == "pending"]
