"""Encryption at rest: a ciphertext is valid with its own key and in its own place only."""

import base64
from pathlib import Path

import pytest
from pydantic import ValidationError

from models import encryption
from models.encryption import Keyring
from models.errors import RecordsKeyMissing, RecordsUnreadable
from runtime import settings as settings_module
from runtime.settings import Settings

KEY, OTHER = bytes(range(32)), bytes(32)


class TestSeal:
    def test_unseal_returns_the_plain_text(self) -> None:
        for plain in (b"", b"x", bytes(range(256)) * 1000):
            sealed = encryption.seal(KEY, plain, b"here")
            assert encryption.unseal(KEY, sealed, b"here") == plain
            assert len(sealed) == encryption.NONCE_BYTES + len(plain) + 16

    def test_ciphertexts_differ_and_hide_the_plain_text(self) -> None:
        sealed = [encryption.seal(KEY, b"somebody's record", b"") for _ in range(50)]
        assert len({each[: encryption.NONCE_BYTES] for each in sealed}) == 50
        assert not any(b"record" in each for each in sealed)

    def test_other_key_or_place_is_rejected(self) -> None:
        sealed = encryption.seal(KEY, b"plain", b"here")
        for key, place in ((OTHER, b"here"), (KEY, b"there"), (KEY, b"")):
            with pytest.raises(RecordsUnreadable):
                encryption.unseal(key, sealed, place)

    def test_changed_or_truncated_ciphertext_is_rejected(self) -> None:
        sealed = encryption.seal(KEY, b"plain", b"here")
        changed = [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
        for bad in (*changed, *(sealed[:i] for i in range(len(sealed)))):
            with pytest.raises(RecordsUnreadable):
                encryption.unseal(KEY, bad, b"here")


class TestKeyring:
    def test_encrypts_with_the_first_key_and_decrypts_with_each(self) -> None:
        before, after = Keyring((KEY,)), Keyring((OTHER, KEY))
        sealed = before.seal(b"plain", b"here")
        assert after.unseal(before.newest_id, sealed, b"here") == b"plain"
        assert after.newest_id == encryption.key_id(OTHER) != before.newest_id

    def test_error_names_the_missing_key(self) -> None:
        before = Keyring((KEY,))
        with pytest.raises(RecordsKeyMissing, match=rf"SFUMATO_RECORDS_KEY lacks the key {before.newest_id}"):
            Keyring((OTHER,)).unseal(before.newest_id, before.seal(b"plain", b""), b"")

    def test_ciphertext_of_one_key_is_rejected_for_another(self) -> None:
        sealed = Keyring((KEY,)).seal(b"plain", b"")
        with pytest.raises(RecordsUnreadable):
            Keyring((KEY, OTHER)).unseal(encryption.key_id(OTHER), sealed, b"")

    def test_repr_hides_the_keys(self) -> None:
        ring = Keyring((KEY,))
        assert base64.b64encode(KEY).decode() not in repr(ring)
        assert repr(KEY) not in repr(ring)
        assert KEY.hex()[:16] != ring.newest_id


class TestKeysInSettings:
    def test_are_read_newest_first(self) -> None:
        text = f" {encryption.encode_key(OTHER)} , {encryption.encode_key(KEY)}\n"
        assert settings_module.read_keys(text) == (OTHER, KEY)

    @pytest.mark.parametrize("text", ["", ",", "secret-but-short", base64.b64encode(bytes(31)).decode(), "é" * 44])
    def test_invalid_keys_are_rejected_without_quoting_them(self, text: str) -> None:
        with pytest.raises(ValueError, match="32 bytes, base64") as raised:
            settings_module.read_keys(text)
        assert "secret" not in str(raised.value)

    def test_are_validated_and_hidden_by_the_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", "secret-but-short")
        with pytest.raises(ValidationError) as raised:
            Settings()
        assert "secret" not in str(raised.value)
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", encryption.encode_key(KEY))
        assert encryption.encode_key(KEY) not in repr(Settings())
        assert encryption.load_keyring(Settings()) == Keyring((KEY,))

    def test_come_from_the_home_directory_without_a_setting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", "")  # the value in a deployment's template
        settings = Settings(home=tmp_path)
        with pytest.raises(RecordsKeyMissing, match="set SFUMATO_RECORDS_KEY"):
            encryption.load_keyring(settings)
        (tmp_path / encryption.KEY_FILE).write_text("no key")
        with pytest.raises(RecordsKeyMissing, match=r"records\.key in the home directory contains no valid key"):
            encryption.load_keyring(settings)
        (tmp_path / encryption.KEY_FILE).write_text(encryption.encode_key(OTHER) + "\n")
        assert encryption.load_keyring(settings) == Keyring((OTHER,))
