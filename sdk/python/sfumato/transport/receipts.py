"""Answers to sent reports: which of them settle a report.

Proxies, sign-in pages and wrong hosts answer requests too, with any status and body. A report is settled by the
service's receipt, or by a problem with a code of `SETTLED_STATES`. After any other answer it is kept, and a later call
sends the same bytes. The shuffler answers devices in the same form. `openapi/vectors/answers.json` holds the other SDKs
to the same rules.
"""

from collections.abc import Mapping
from typing import Literal

from sfumato.errors import ApiProblem
from sfumato.transport.exchange import FOREIGN, Response, unexpected_response

SettledState = Literal["acknowledged", "closed", "refused"]

# Final problem codes. All other codes concern the key, a limit, the way or the service, and can end: `not_found` ends
# with the right key, and the closure of the round ends the others.
SETTLED_STATES: Mapping[str, SettledState] = {
    "round_closed": "closed",
    "report_malformed": "refused",  # the mechanism of the round cannot send it
    "validation_failed": "refused",  # the report has another form
    "conflict": "refused",  # the round accepts sealed reports only
    "sealed_length": "refused",  # the shuffler: the report was sealed for another round
    "already_reported": "refused",  # the shuffler: another device has sent a report with this key
}


def check_receipt(response: Response, round_id: str, n_reports: int) -> None:
    """Raise ApiProblem unless a response is the receipt for a number of reports to a round."""
    receipt = response.object() if response.status == 202 else {}
    accepted = receipt.get("accepted")
    if receipt.get("round_id") != round_id or type(accepted) is not int or accepted != n_reports:
        raise unexpected_response(response.status, FOREIGN)


def settled_state(problem: ApiProblem) -> SettledState | None:
    """Return the final state of a report after a problem, or None if the report is kept."""
    return SETTLED_STATES.get(problem.code)
