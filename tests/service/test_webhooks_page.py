"""docs/webhooks.md is held to the code: its tables, and its example of checking a signature."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from models.db import SECOND, system_clock
from models.delivery import DELAYS, PING, SECRET_UNREADABLE
from models.webhook import EventType
from service import webhook_delivery
from service.webhook_delivery import signature

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
BODY = b'{"data":{"id":"job_1"},"timestamp":"2026-11-22T00:00:00.000000Z","type":"job.succeeded"}'


@pytest.fixture
def verified() -> Any:
    """The function of the page."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - what a reader copies
    return names["verified"]


def headers(*, sent_at: int, secrets: tuple[bytes, ...] = (bytes(range(32)),)) -> dict[str, str]:
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(sent_at),
        "webhook-signature": signature(secrets, "msg_1", sent_at, BODY),
    }


class TestTheExample:
    def test_takes_what_we_send_also_while_a_secret_is_replaced(self, verified: Any) -> None:
        now = system_clock() // SECOND
        assert verified(SECRET, headers(sent_at=now), BODY)["type"] == "job.succeeded"
        both = (b"another of thirty-two bytes here", bytes(range(32)))
        assert verified(SECRET, headers(sent_at=now, secrets=both), BODY)["data"] == {"id": "job_1"}

    def test_refuses_what_is_old_forged_or_changed(self, verified: Any) -> None:
        now = int(time.time())
        for given, body in (
            (headers(sent_at=now - 400), BODY),
            (headers(sent_at=now + 400), BODY),
            (headers(sent_at=now, secrets=(bytes(32),)), BODY),
            (headers(sent_at=now) | {"webhook-id": "msg_2"}, BODY),
            (headers(sent_at=now), BODY + b" "),
        ):
            with pytest.raises(ValueError, match=r"old|signed"):
                verified(SECRET, given, body)


class TestTheTables:
    def test_name_every_type(self) -> None:
        section = PAGE.read_text().split("## What is told")[1].split("\n## ")[0]
        rows = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        assert set(re.findall(r"`([\w.]+)`", rows)) == {*EventType, PING}

    def test_name_every_error(self) -> None:
        codes = {SECRET_UNREADABLE}
        codes |= {
            getattr(webhook_delivery, name)
            for name in ("BAD_STATUS", "REDIRECTED", "TIMEOUT", "CONNECTION_FAILED", "TLS_FAILED", "NO_ADDRESS")
        }
        section = PAGE.read_text().split("## Attempts")[1].split("\n## ")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) - {"last_error"} == codes

    def test_tell_the_pauses(self) -> None:
        told = "after 5 seconds, 5 and 30 minutes, 2, 5, 10, 10, 20 and 24 hours"
        assert told in PAGE.read_text().replace("\n", " ")
        seconds = (5, 300, 1800, *(3600 * hours for hours in (2, 5, 10, 10, 20, 24)))
        assert tuple(delay // SECOND for delay in DELAYS) == seconds
