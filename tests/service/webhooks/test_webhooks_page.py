"""docs/webhooks.md agrees with the code: its tables, and its example that verifies a signature."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from models.database.types import SECOND, system_clock
from models.tables.webhooks import EventType
from models.webhooks.deliveries import DELAYS, PING, SECRET_UNREADABLE
from service.webhooks import delivery
from service.webhooks.delivery import signature

PAGE = Path(__file__).parents[3] / "docs" / "webhooks.md"
SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
BODY = b'{"data":{"id":"job_1"},"timestamp":"2026-11-22T00:00:00.000000Z","type":"job.succeeded"}'


@pytest.fixture
def verified() -> Any:
    """Return the function of the page."""
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


class TestExample:
    def test_accepts_deliveries_even_during_a_rotation_of_the_secret(self, verified: Any) -> None:
        now = system_clock() // SECOND
        assert verified(SECRET, headers(sent_at=now), BODY)["type"] == "job.succeeded"
        both = (b"another of thirty-two bytes here", bytes(range(32)))
        assert verified(SECRET, headers(sent_at=now, secrets=both), BODY)["data"] == {"id": "job_1"}

    def test_rejects_old_forged_and_changed_deliveries(self, verified: Any) -> None:
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


class TestTables:
    def test_list_every_event_type(self) -> None:
        section = PAGE.read_text().split("## Events")[1].split("\n## ")[0]
        rows = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        assert set(re.findall(r"`([\w.]+)`", rows)) == {*EventType, PING}

    def test_list_every_error(self) -> None:
        codes = {SECRET_UNREADABLE}
        codes |= {
            getattr(delivery, name)
            for name in ("BAD_STATUS", "REDIRECTED", "TIMEOUT", "CONNECTION_FAILED", "TLS_FAILED", "NO_ADDRESS")
        }
        section = PAGE.read_text().split("## Attempts")[1].split("\n## ")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) - {"last_error"} == codes

    def test_list_the_delays(self) -> None:
        text = "after 5 seconds, 5 and 30 minutes, 2, 5, 10, 10, 20 and 24 hours"
        assert text in PAGE.read_text().replace("\n", " ")
        seconds = (5, 300, 1800, *(3600 * hours for hours in (2, 5, 10, 10, 20, 24)))
        assert tuple(delay // SECOND for delay in DELAYS) == seconds
