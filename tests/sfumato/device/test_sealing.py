"""Sealed reports: they have one length, and they open for one key, round and round bytes only."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.device.sealing import (
    LABEL,
    MAX_SLOT,
    OUTER_BYTES,
    RoundKeyPair,
    SealedContent,
    generate_round_key_pair,
    open_sealed,
    public_key_of,
    seal,
    sealed_length,
    sign_round,
    unwrap,
    verify_round,
    wrap,
)
from sfumato.errors import InvalidSpec
from sfumato.transport.batches import generate_signing_key_pair
from tests.vectors import hpke
from tests.vectors.files import DIRECTORY

KEYS = generate_round_key_pair()
ID = bytes(range(16))


@dataclass(frozen=True)
class Round:
    id: str = "rnd_1"
    bytes: bytes = b'{"id":"rnd_1"}'
    keys: RoundKeyPair = KEYS

    def seal(self, slot: int = 7, value: bytes = b"\1\2\3", report_id: bytes = ID) -> bytes:
        return seal(report_id, slot, value, self.id, self.bytes, self.keys.public_key)

    def open(self, *sealed: bytes) -> list[SealedContent | None]:
        return list(open_sealed(sealed, self.id, self.bytes, self.keys.private_key))


class TestSeal:
    @given(slot=st.integers(0, MAX_SLOT), value=st.binary(max_size=40), report_id=st.binary(min_size=16, max_size=16))
    def test_opens_again_and_depends_in_length_on_the_value_alone(
        self, slot: int, value: bytes, report_id: bytes
    ) -> None:
        sealed = Round().seal(slot, value, report_id)
        assert len(sealed) == sealed_length(len(value))
        assert Round().open(sealed) == [(report_id, slot, value)]

    def test_is_different_each_time(self) -> None:
        assert len({Round().seal() for _ in range(20)}) == 20

    @pytest.mark.parametrize("bad", [{"slot": -1}, {"slot": MAX_SLOT + 1}, {"report_id": ID[:-1]}])
    def test_refuses_arguments_out_of_range(self, bad: dict[str, object]) -> None:
        with pytest.raises(InvalidSpec, match="a report id must have 16 bytes, and a slot must lie in 0"):
            Round().seal(**bad)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "key", [b"", KEYS.public_key + b"\0", bytes(32), b"\1" + bytes(31)], ids=["empty", "long", "zero", "one"]
    )
    def test_refuses_keys_that_would_reveal_the_report(self, key: bytes) -> None:
        with pytest.raises(InvalidSpec, match="HPKE"):
            replace(Round(), keys=RoundKeyPair(b"", key)).seal()


class TestOpen:
    @pytest.mark.parametrize(
        "other",
        [
            Round(id="rnd_2"),
            Round(bytes=b'{"id":"rnd_1"} '),
            Round(id="rnd_1{", bytes=b'"id":"rnd_1"}'),
            Round(keys=generate_round_key_pair()),
        ],
    )
    def test_opens_nothing_of_another_round_or_key(self, other: Round) -> None:
        assert other.open(Round().seal()) == [None]

    def test_opens_nothing_that_was_changed_and_continues(self) -> None:
        sealed = Round().seal()
        changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in (0, 31, 32, 51, len(sealed) - 1)]
        malformed = [b"", sealed[:-1], sealed + b"\0", bytes(len(sealed)), sealed[:32]]
        opened = Round().open(*changed, sealed, *malformed, sealed)
        assert Counter(each is None for each in opened) == {True: 10, False: 2}

    def test_opens_no_content_without_a_slot(self) -> None:
        info = LABEL + b"rnd_1" + hashlib.sha256(Round().bytes).digest()
        sealed = [hpke.seal(bytes(length), KEYS.public_key, info, b"seed") for length in (0, 19, 20)]
        assert Round().open(*sealed) == [None, None, (bytes(16), 0, b"")]


class TestOuterLayer:
    @given(sealed=st.binary(max_size=200))
    def test_is_removed_by_its_key_and_round_alone(self, sealed: bytes) -> None:
        wrapped = wrap(sealed, "rnd_1", KEYS.public_key)
        assert len(wrapped) == len(sealed) + OUTER_BYTES
        assert list(unwrap([wrapped, sealed], "rnd_1", KEYS.private_key)) == [sealed, None]
        assert list(unwrap([wrapped], "rnd_2", KEYS.private_key)) == [None]
        assert list(unwrap([wrapped], "rnd_1", generate_round_key_pair().private_key)) == [None]

    def test_is_different_each_time_and_shares_no_bytes_with_the_report(self) -> None:
        sealed = Round().seal()
        wrapped = [wrap(sealed, "rnd_1", KEYS.public_key) for _ in range(20)]
        assert len({each[at : at + 8] for each in wrapped for at in range(len(each) - 7)}) == 20 * (len(sealed) + 41)
        assert not any(sealed[at : at + 8] in each for each in wrapped for at in range(len(sealed) - 7))

    def test_of_the_other_layer_does_not_open(self) -> None:
        assert Round().open(wrap(Round().seal(), "rnd_1", KEYS.public_key)) == [None]
        assert list(unwrap([Round().seal()], "rnd_1", KEYS.private_key)) == [None]

    @pytest.mark.parametrize("key", [b"", KEYS.public_key + b"\0", bytes(32)], ids=["empty", "long", "zero"])
    def test_refuses_keys_that_would_reveal_the_report(self, key: bytes) -> None:
        with pytest.raises(InvalidSpec, match="HPKE"):
            wrap(b"", "rnd_1", key)

    def test_public_key_follows_from_the_private_key(self) -> None:
        assert public_key_of(KEYS.private_key) == KEYS.public_key


class TestAnnouncements:
    def test_are_valid_for_one_round_one_outer_key_and_one_shuffler(self) -> None:
        private_key, public_key = generate_signing_key_pair()
        signature = sign_round("rnd_1", b"{}", KEYS.public_key, private_key)
        assert verify_round("rnd_1", b"{}", KEYS.public_key, signature, public_key)
        for changed in (("rnd_2", b"{}", KEYS.public_key), ("rnd_1", b"{} ", KEYS.public_key),
                        ("rnd_1", b"{}", generate_round_key_pair().public_key)):  # fmt: skip
            assert not verify_round(*changed, signature, public_key)
        assert not verify_round("rnd_1", b"{}", KEYS.public_key, signature, generate_signing_key_pair()[1])

    def test_without_an_outer_key_are_not_valid(self) -> None:
        private_key, public_key = generate_signing_key_pair()
        assert not verify_round("rnd_1", b"{}", b"", sign_round("rnd_1", b"{}", b"", private_key), public_key)


class TestVectors:
    def test_the_twin_reproduces_rfc_9180(self) -> None:
        """RFC 9180, appendix A.1.1, sequence number 0."""
        private_key = hpke.derive_private_key(
            bytes.fromhex("6db9df30aa07dd42ee5e8181afdb977e538f5e1fec8a06223f33f7013e525037")
        )
        public_key = private_key.public_key().public_bytes_raw()
        assert public_key.hex() == "3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"
        sealed = hpke.seal(
            b"Beauty is truth, truth beauty",
            public_key,
            b"Ode on a Grecian Urn",
            bytes.fromhex("7268600d403fce431561aef583ee1613527cff655c1343f29812e66706df3234"),
            b"Count-0",
        )
        assert sealed.hex() == (
            "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
            "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
        )

    @pytest.mark.parametrize(
        "case", json.loads((DIRECTORY / "sealed.json").read_text())["sealed"], ids=lambda case: case["name"]
    )
    def test_the_library_opens_what_the_twin_sealed(self, case: dict[str, Any]) -> None:
        part = {key: bytes.fromhex(text) for key, text in case.items() if key not in ("name", "round_id", "slot")}
        (content,) = open_sealed([part["sealed"]], case["round_id"], part["round"], part["private_key"])
        assert content == (part["report_id"], case["slot"], part["value"])
        assert list(unwrap([part["wrapped"]], case["round_id"], part["outer_private_key"])) == [part["sealed"]]
        announced = case["round_id"], part["round"], part["outer_public_key"]
        assert verify_round(*announced, part["signature"], part["shuffler_public_key"])
