"""Batches: a signed body that no other round, key, count, order or length fits."""

from dataclasses import replace

import pytest

from sfumato.errors import InvalidSpec
from sfumato.transport.batches import (
    HEAD_BYTES,
    Batch,
    generate_signing_key_pair,
    sign_release,
)
from tests.batches import parse_batch, verify_release

PRIVATE, PUBLIC = bytes(range(32)), bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
REPORTS = [bytes([each]) * 71 for each in range(5)]
BATCH = sign_release("rnd_1", REPORTS, PRIVATE)


class TestBody:
    def test_is_read_as_it_was_written(self) -> None:
        assert parse_batch(BATCH.body) == BATCH
        assert (BATCH.count, BATCH.reports, len(BATCH.body)) == (5, REPORTS, HEAD_BYTES + 5 * 71)

    def test_has_fixed_bytes(self) -> None:
        """Ed25519 is deterministic (RFC 8032)."""
        expected = (
            "ac20b31e2b59c6aa6b8bb2db0029a4bc9ab11ce4c1f1a2216c46933981f0f5ed"
            "a2b9eee4663c7040ce3ad677ae56961e938afa36c7e44f0756457e17cda0a10d"
        )
        assert BATCH.signature.hex() == expected

    @pytest.mark.parametrize(
        "body",
        [b"", BATCH.body[:HEAD_BYTES], BATCH.body[:-1], BATCH.body + b"\0", bytes(HEAD_BYTES) + b"1"],
        ids=["empty", "head", "truncated", "longer", "length 0"],
    )
    def test_is_refused_if_truncated_or_of_unequal_lengths(self, body: bytes) -> None:
        with pytest.raises(InvalidSpec, match="a batch"):
            parse_batch(body)


class TestSignature:
    def test_is_valid_for_its_round_and_key(self) -> None:
        assert verify_release("rnd_1", parse_batch(BATCH.body), PUBLIC)

    @pytest.mark.parametrize(
        "forged",
        [
            replace(BATCH, signature=bytes(64)),
            replace(BATCH, signature=b""),
            replace(BATCH, sealed=BATCH.sealed[:-71]),
            replace(BATCH, sealed=BATCH.sealed + BATCH.sealed[:71]),
            replace(BATCH, sealed=BATCH.sealed[71:] + BATCH.sealed[:71]),
            replace(BATCH, length=5 * 71),
        ],
    )
    def test_is_not_valid_for_other_reports_or_lengths(self, forged: Batch) -> None:
        assert not verify_release("rnd_1", forged, PUBLIC)

    def test_is_not_valid_for_another_round_or_key(self) -> None:
        private, public = generate_signing_key_pair()
        assert not verify_release("rnd_2", BATCH, PUBLIC)
        assert not verify_release("rnd_1", BATCH, public)
        assert verify_release("rnd_1", sign_release("rnd_1", REPORTS, private), public)

    @pytest.mark.parametrize("reports", [[], [b""], [b"1", b"22"]])
    def test_is_not_given_for_unequal_lengths(self, reports: list[bytes]) -> None:
        with pytest.raises(InvalidSpec, match="one length"):
            sign_release("rnd_1", reports, PRIVATE)

    def test_needs_keys_of_32_bytes(self) -> None:
        with pytest.raises(InvalidSpec, match="32 bytes"):
            sign_release("rnd_1", REPORTS, PRIVATE + b"\0")
        with pytest.raises(InvalidSpec, match="32 bytes"):
            verify_release("rnd_1", BATCH, b"")
