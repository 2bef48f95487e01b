"""Vectors of answers to a report: the state of the report afterwards. Proxies and other hosts answer in any form."""

import json
from typing import Any

from service.http.problems import ALL_PROBLEMS
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE
from sfumato.transport.receipts import SETTLED_STATES
from shuffler.app import REASONS

ROUND_ID = "rnd_1"
RECEIPT = {"round_id": ROUND_ID, "accepted": 1}
HTML = "<!doctype html><title>Sign in</title>"
FOREIGN_STATUSES = (200, 201, 202, 203, 302, 303, 307, 400, 401, 402, 403, 404, 405, 406, 409, 410, 411, 413, 415, 417,
                    418, 421, 422, 423, 425, 426, 428, 431, 451, 499, 500, 502, 503, 507, 511, 530)  # fmt: skip


def problem(status: int, code: str, **changes: Any) -> dict[str, Any]:
    members = {"type": f"{PROBLEM_TYPE}{code}", "title": "No", "status": status, "detail": "no", "code": code}
    return members | changes


def answer_vectors() -> list[dict[str, Any]]:
    """Return the cases: an answer, and the state of the report after it. A kept report is pending."""
    statuses = {each.code: each.status for each in ALL_PROBLEMS}
    statuses |= {verdict.value: status for verdict, (status, _) in REASONS.items()}
    assert set(SETTLED_STATES) <= set(statuses)
    own = [
        _case("a receipt", 202, json.dumps(RECEIPT), "acknowledged"),
        _case("a receipt with a new member", 202, json.dumps(RECEIPT | {"more": [1]}), "acknowledged"),
        *(
            _case(f"problem: {code}", status, json.dumps(problem(status, code)), SETTLED_STATES.get(code, "pending"),
                  f"{PROBLEM_MEDIA_TYPE}; charset=utf-8")
            for code, status in statuses.items()
        ),
    ]  # fmt: skip
    closed, malformed = problem(409, "round_closed"), problem(422, "report_malformed")
    foreign = {
        "a receipt with another status": (200, json.dumps(RECEIPT)),
        "a receipt for another round": (202, json.dumps(RECEIPT | {"round_id": "rnd_2"})),
        "a receipt for no report": (202, json.dumps(RECEIPT | {"accepted": 0})),
        "a receipt for two reports": (202, json.dumps(RECEIPT | {"accepted": 2})),
        "a receipt with a number as text": (202, json.dumps(RECEIPT | {"accepted": "1"})),
        "a receipt with true for a number": (202, json.dumps(RECEIPT | {"accepted": True})),
        "a receipt without a number": (202, json.dumps({"round_id": ROUND_ID})),
        "a receipt without a round": (202, json.dumps({"accepted": 1})),
        "a receipt in a list": (202, json.dumps([RECEIPT])),
        "a truncated receipt": (202, json.dumps(RECEIPT)[:-1]),
        "a receipt and more": (202, json.dumps(RECEIPT) + "}"),
        "null": (202, "null"),
        "text": (202, '"accepted"'),
        "deep lists": (202, "[" * 5000),
        "no content": (204, ""),
        "no body": (202, ""),
        "not modified": (304, ""),
        "a problem without a type": (409, json.dumps({"code": "round_closed", "status": 409})),
        "a problem of another type": (422, json.dumps(malformed | {"type": "about:blank"})),
        "a problem of another code": (409, json.dumps(closed | {"code": "conflict"})),
        "a problem with another status": (404, json.dumps(closed)),
        "a truncated problem": (409, json.dumps(closed)[:-1]),
        "a list of problems": (409, json.dumps([closed])),
    }
    types = {name: PROBLEM_MEDIA_TYPE if "problem" in name else "application/json" for name in foreign}
    return [
        *own,
        *(_case(name, *answer, "pending", types[name]) for name, answer in foreign.items()),
        *(_case(f"{status} with a page", status, HTML, "pending", "text/html") for status in FOREIGN_STATUSES),
        _case("a problem as plain JSON", 409, json.dumps(closed), "pending"),
        _case("a problem as text", 422, json.dumps(malformed), "pending", "text/plain"),
    ]


def _case(name: str, status: int, body: str, state: str, content_type: str = "application/json") -> dict[str, Any]:
    return {"name": name, "status": status, "content_type": content_type, "body": body, "state": state}
