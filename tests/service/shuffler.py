"""A fake shuffler and devices in this process: they seal, sign and release as the real ones do."""

import base64
import json
import secrets
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from models.database.types import canonical_json
from sfumato.device.sealing import seal
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.encodings import symbols
from sfumato.specs import round_spec_from_wire
from sfumato.transport.batches import MEDIA_TYPE, Batch, generate_signing_key_pair, sign_release
from tests.service.api import Api

PRIVATE_KEY, PUBLIC_KEY = generate_signing_key_pair()
SHUFFLER = {
    "name": "Example Foundation",
    "url": "https://shuffler.example",
    "public_key": base64.b64encode(PUBLIC_KEY).decode(),
}
TERMS = {"min_batch": 20, "honest_share": 0.5}


def shuffled_dataset(api: Api, **other: Any) -> str:
    """Create a shuffled dataset. Return its id."""
    given = {"trust": "shuffled", "shuffled": {"epsilon": 20, "delta": 1e-3}, "shuffler": SHUFFLER}
    return api.dataset(**given | other)["id"]


def sealed_reports(api: Api, of_round: str, n: int, *, ids: Sequence[bytes] | None = None, **other: Any) -> list[bytes]:
    """Return the sealed reports of n devices, from the round that the gateway lists.

    `other` replaces members of the sealing: round_id, round_bytes, hpke_public_key.
    """
    dataset_id = api.get(f"/rounds/{of_round}").json()["dataset_id"]
    listed = json.loads(api.get(f"/datasets/{dataset_id}/round").content)["rounds"]
    (published,) = [each for each in listed if each["id"] == of_round]
    spec = round_spec_from_wire(published["spec"])
    points = np.random.default_rng(1).random((n, spec.encoding.n_features))
    slots = np.zeros(n, dtype=np.int64)
    values = spec.mechanism.perturb_many(symbols(spec.encoding, points, slots), SystemEntropy())
    place = {
        "round_id": of_round,
        "round_bytes": canonical_json(published).encode(),
        "hpke_public_key": base64.b64decode(published["hpke_public_key"]),
    }
    return [seal(ids[i] if ids else secrets.token_bytes(16), 0, values[i].tobytes(), **place | other) for i in range(n)]


def send(api: Api, round_id: str, body: bytes, kind: str = MEDIA_TYPE) -> httpx.Response:
    """Send the body of a release."""
    return api.post(f"/rounds/{round_id}/batches", content=body, headers={"Content-Type": kind})


def signed(round_id: str, reports: Sequence[bytes], key: bytes = PRIVATE_KEY) -> Batch:
    """Return a signed batch."""
    return sign_release(round_id, reports, key)


def release(api: Api, round_id: str, n: int, **other: Any) -> Batch:
    """Let n devices report and release the round, which must succeed."""
    batch = signed(round_id, sealed_reports(api, round_id, n, **other))
    answer = send(api, round_id, batch.body)
    assert answer.status_code == 202, answer.text
    assert answer.json() == {"round_id": round_id, "accepted": n}
    return batch
