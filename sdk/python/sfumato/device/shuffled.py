"""Device of one person that reports through a shuffler. Needs the extra `shuffled`.

    fetch from the shuffler ──► signature? ──► enough honest reports? ──► as `Device` ──► seal ──► store ──► send

The shuffler cannot open the report, and the service does not receive it from the device. If both work together, the
local epsilon of the report is the device's protection. The cap therefore limits the local epsilon.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

from sfumato.device.device import MAX_OPEN_ROUNDS, Device, OpenRound, Record, check_id, parse_open_rounds
from sfumato.device.sealing import SIGNATURE_HEADER, seal, verify_round
from sfumato.device.store import Memo
from sfumato.errors import InvalidSpec, RoundRefused
from sfumato.privacy.shuffling import honest_reports
from sfumato.specs import RoundSpec
from sfumato.transport.exchange import Request


class ShuffledDevice(Device):
    """One person's device, for one dataset with the trust model `shuffled`.

    Parameters
    ----------
    url : str
        URL of the shuffler, not of the service. The app pins it.
    key : str
        Bearer key that the shuffler gave to this device.
    dataset_id : str
    shuffler_key : str
        Public key of the shuffler in base64, which the app pins. The device rejects rounds without its signature.
    min_honest_batch : int
        The device rejects rounds whose release may contain fewer honest reports.
    **options
        `cap`, `store` and the other parameters of `Device`. The cap limits the local epsilon.

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
        verify_round("", b"", bytes(64), self._shuffler_key)  # raises if the key is not valid
        if min_honest_batch < 1:
            raise InvalidSpec("min_honest_batch must be at least 1")
        self._min_honest_batch = min_honest_batch
        self._documents: dict[str, bytes] = {}  # round bytes with a valid signature
        super().__init__(url, key, dataset_id, **options)

    def _fetch(self) -> tuple[OpenRound, ...]:
        listed = self._http.send(Request("GET", f"datasets/{self._dataset_id}/rounds")).object().get("rounds")
        if not isinstance(listed, list) or len(listed) > MAX_OPEN_ROUNDS:
            raise InvalidSpec(f"open rounds must be a list of at most {MAX_OPEN_ROUNDS}")
        self._documents = {round_id: self._document(check_id(round_id)) for round_id in listed}
        rounds = parse_open_rounds({"rounds": [_members(each) for each in self._documents.values()]})
        if [each.round_id for each in rounds] != list(self._documents):
            raise RoundRefused("the shuffler sent another round than it lists")
        return rounds

    def _document(self, round_id: str) -> bytes:
        """Return the round bytes. Raise RoundRefused if the shuffler's signature is not valid."""
        if (known := self._documents.get(round_id)) is not None:
            return known
        response = self._http.send(Request("GET", f"rounds/{round_id}"))
        try:
            signature = base64.b64decode(response.headers.get(SIGNATURE_HEADER, ""), validate=True)
        except ValueError:
            signature = b""
        if not verify_round(round_id, response.body, signature, self._shuffler_key):
            raise RoundRefused(f"{round_id} is not signed with the key of the shuffler that this app pins")
        return response.body

    def _cost(self, open_round: OpenRound, spec: RoundSpec) -> int:
        members = _members(self._documents[open_round.round_id])
        try:
            n_honest = honest_reports(int(members["min_batch"]), Fraction(str(members["honest_share"])))
        except (KeyError, TypeError, ValueError):
            raise InvalidSpec("a shuffled round states min_batch and honest_share") from None
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
        document = self._documents[open_round.round_id]
        try:
            public_key = base64.b64decode(_members(document)["hpke_public_key"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise InvalidSpec("a shuffled round states hpke_public_key in base64") from None
        report_id, value = bytes.fromhex(memo.report_id), bytes.fromhex(cast(str, memo.value))
        sealed = seal(report_id, cast(int, memo.slot), value, memo.round_id, document, public_key)
        return replace(memo, report_id="", slot=None, value=sealed.hex())

    def _body(self, memo: Memo) -> dict[str, object]:
        return {"sealed": base64.b64encode(bytes.fromhex(cast(str, memo.value))).decode()}

    def _request(self, memo: Memo) -> Request:
        headers = {"Content-Type": "application/octet-stream"}
        sealed = bytes.fromhex(cast(str, memo.value))
        return Request("POST", f"rounds/{memo.round_id}/sealed", content=sealed, headers=headers)


def _members(document: bytes) -> Mapping[str, Any]:
    try:
        members = json.loads(document)
    except ValueError:
        raise InvalidSpec("a round must be JSON") from None
    if not isinstance(members, dict):
        raise InvalidSpec("a round must be a JSON object")
    return members
