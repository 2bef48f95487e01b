"""Device of one person that reports through a shuffler. Needs the extra `shuffled`.

    fetch from the shuffler ──► signature? ──► enough honest reports? ──► as `Device` ──► seal ──► store ──► wrap, send

The shuffler cannot open the report, and the service does not receive it from the device. A forwarder between device and
shuffler sees when the device sends, and bytes that occur in no batch. The device wraps the stored report in an outer
layer each time it sends it, and the shuffler removes the layer. If shuffler and service work together, the local
epsilon of the report is the device's protection. The cap therefore limits the local epsilon.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, cast

from sfumato.device.checks import Record
from sfumato.device.device import Device
from sfumato.device.open_rounds import MAX_OPEN_ROUNDS, OpenRound, check_id, parse_open_rounds
from sfumato.device.sealing import KEY_BYTES, OUTER_KEY_HEADER, SIGNATURE_HEADER, seal, verify_round, wrap
from sfumato.device.store import Memo
from sfumato.errors import InvalidSpec, RoundRefused
from sfumato.specs import RoundSpec
from sfumato.transport.exchange import Request
from sfumato.validation import is_number, require, require_int

MAX_BATCH = 2**31 - 1


class _Announced(NamedTuple):
    """A round with a valid signature of the shuffler."""

    document: bytes
    outer_key: bytes


class ShuffledDevice(Device):
    """One person's device, for one dataset with the trust model `shuffled`.

    What the service sees costs the round's (epsilon, delta) if it does not work together with the shuffler, and if
    enough reports of the release are honest. Otherwise a report costs its local epsilon. A forwarder of reports sees
    their times and sizes only.

    Parameters
    ----------
    url : str
        URL of the shuffler, not of the service. The app pins it.
    key : str
        Bearer key that the shuffler gave to this device.
    dataset_id : str
    shuffler_key : str
        Public key of the shuffler in base64, which the app pins. The device rejects rounds and outer keys without its
        signature.
    min_honest_batch : int
        The device rejects rounds with releases that may contain fewer honest reports.
    **options
        `cap`, `store` and the other parameters of `Device`. The cap limits the local epsilon. The device refuses
        rounds that keep reports, even with `accept_kept_reports`.

    Raises
    ------
    InvalidSpec
        The key or the number is not valid.
    """

    def __init__(
        self, url: str, key: str, dataset_id: str, *, shuffler_key: str, min_honest_batch: int, **options: Any
    ) -> None:
        try:
            self._shuffler_key = base64.b64decode(shuffler_key, validate=True)
        except ValueError:
            raise InvalidSpec("shuffler_key must be base64") from None
        verify_round("", b"", b"", bytes(64), self._shuffler_key)  # raises if the key is not valid
        require_int(min_honest_batch, 1, MAX_BATCH, "min_honest_batch")
        self._min_honest_batch = min_honest_batch
        self._announced: dict[str, _Announced] = {}
        super().__init__(url, key, dataset_id, **options)

    def _fetch(self) -> tuple[OpenRound, ...]:
        listed = self._http.send(Request("GET", f"datasets/{self._dataset_id}/rounds")).object().get("rounds")
        if not isinstance(listed, list) or len(listed) > MAX_OPEN_ROUNDS:
            raise InvalidSpec(f"open rounds must be a list of at most {MAX_OPEN_ROUNDS}")
        self._announced = {round_id: self._announcement(check_id(round_id)) for round_id in listed}
        rounds = parse_open_rounds({"rounds": [_members(each.document) for each in self._announced.values()]})
        if [each.round_id for each in rounds] != list(self._announced):
            raise RoundRefused("the shuffler sent another round than it lists")
        return rounds

    def _announcement(self, round_id: str) -> _Announced:
        """Return round bytes and outer key. Raise RoundRefused if the shuffler's signature is not valid."""
        if (known := self._announced.get(round_id)) is not None:
            return known
        response = self._http.send(Request("GET", f"rounds/{round_id}"))
        headers = (response.headers.get(name, "") for name in (SIGNATURE_HEADER, OUTER_KEY_HEADER))
        signature, outer_key = map(_decode, headers)
        if not verify_round(round_id, response.body, outer_key, signature, self._shuffler_key):
            raise RoundRefused(f"{round_id} is not signed with the key of the shuffler that this app pins")
        wrap(b"", round_id, outer_key)  # raises if the key is not valid
        return _Announced(response.body, outer_key)

    def _cost(self, open_round: OpenRound, spec: RoundSpec) -> int:
        n_honest = _count_honest(_members(self._announced[open_round.round_id].document))
        if n_honest < self._min_honest_batch:
            raise RoundRefused(
                f"{open_round.round_id} may be released with {n_honest} honest reports; "
                f"this device requires {self._min_honest_batch}"
            )
        if open_round.keep_reports:
            raise RoundRefused(f"{open_round.round_id} keeps reports, which a shuffled round must not do")
        return super()._cost(open_round, spec)

    def _perturb(self, open_round: OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturb(open_round, spec, epsilon_nano, record)
        document, outer_key = self._announced[open_round.round_id]
        try:
            public_key = base64.b64decode(_members(document)["hpke_public_key"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise InvalidSpec("a shuffled round must state hpke_public_key in base64") from None
        report_id, value = bytes.fromhex(memo.report_id), bytes.fromhex(cast(str, memo.value))
        sealed = seal(report_id, cast(int, memo.slot), value, memo.round_id, document, public_key)
        return replace(memo, report_id="", slot=None, value=(outer_key + sealed).hex())

    def _body(self, memo: Memo) -> dict[str, object]:
        return {"sealed": base64.b64encode(self._wrap(memo)).decode()}

    def _request(self, memo: Memo) -> Request:
        headers = {"Content-Type": "application/octet-stream"}
        return Request("POST", f"rounds/{memo.round_id}/sealed", content=lambda: self._wrap(memo), headers=headers)

    def _wrap(self, memo: Memo) -> bytes:
        """Return the stored report in a new outer layer, for the announced key or that of the time of the report."""
        stored = bytes.fromhex(cast(str, memo.value))
        outer_key, sealed = stored[:KEY_BYTES], stored[KEY_BYTES:]
        announced = self._announced.get(memo.round_id)
        return wrap(sealed, memo.round_id, outer_key if announced is None else announced.outer_key)


def _count_honest(members: Mapping[str, Any]) -> int:
    """Return the number of honest reports of the smallest release, rounded down. The share counts as it prints."""
    min_batch: Any = members.get("min_batch")
    share: Any = members.get("honest_share")
    require_int(min_batch, 1, MAX_BATCH, "min_batch of a shuffled round")
    require(is_number(share) and 0 < share <= 1, "honest_share of a shuffled round must be a number in (0, 1]")
    return int(min_batch * Fraction(str(share)))


def _decode(text: str) -> bytes:
    """Return the bytes of a base64 text, or none if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _members(document: bytes) -> Mapping[str, Any]:
    try:
        members = json.loads(document)
    except ValueError:
        raise InvalidSpec("a round must be JSON") from None
    if not isinstance(members, dict):
        raise InvalidSpec("a round must be a JSON object")
    return members
