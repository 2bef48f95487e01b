"""Sealing: what is sealed opens with its own key, in its own place, and in no other way."""

import base64
from pathlib import Path

import pytest
from pydantic import ValidationError

from models import sealing
from models.errors import RecordsKeyMissing, RecordsUnreadable
from models.sealing import Keyring
from models.settings import Settings

KEY, OTHER = bytes(range(32)), bytes(32)


class TestSealed:
    def test_octets_open_to_what_they_were(self) -> None:
        for plain in (b"", b"x", bytes(range(256)) * 1000):
            sealed = sealing.seal(KEY, plain, b"here")
            assert sealing.unseal(KEY, sealed, b"here") == plain
            assert len(sealed) == sealing.NONCE_BYTES + len(plain) + 16

    def test_octets_never_look_the_same_and_never_show_what_they_hold(self) -> None:
        sealed = [sealing.seal(KEY, b"somebody's record", b"") for _ in range(50)]
        assert len({each[: sealing.NONCE_BYTES] for each in sealed}) == 50
        assert not any(b"record" in each for each in sealed)

    def test_octets_do_not_open_with_another_key_or_in_another_place(self) -> None:
        sealed = sealing.seal(KEY, b"plain", b"here")
        for key, place in ((OTHER, b"here"), (KEY, b"there"), (KEY, b"")):
            with pytest.raises(RecordsUnreadable):
                sealing.unseal(key, sealed, place)

    def test_octets_do_not_open_with_any_bit_changed_or_cut_off(self) -> None:
        sealed = sealing.seal(KEY, b"plain", b"here")
        changed = [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
        for bad in (*changed, *(sealed[:i] for i in range(len(sealed)))):
            with pytest.raises(RecordsUnreadable):
                sealing.unseal(KEY, bad, b"here")


class TestAKeyring:
    def test_seals_with_its_first_key_and_opens_with_each(self) -> None:
        before, after = Keyring((KEY,)), Keyring((OTHER, KEY))
        sealed = before.seal(b"plain", b"here")
        assert after.unseal(before.newest_id, sealed, b"here") == b"plain"
        assert after.newest_id == sealing.key_id(OTHER) != before.newest_id

    def test_without_the_key_says_which_it_lacks(self) -> None:
        before = Keyring((KEY,))
        with pytest.raises(RecordsKeyMissing, match=rf"SFUMATO_RECORDS_KEY lacks the key {before.newest_id}"):
            Keyring((OTHER,)).unseal(before.newest_id, before.seal(b"plain", b""), b"")

    def test_does_not_take_one_keys_work_for_anothers(self) -> None:
        sealed = Keyring((KEY,)).seal(b"plain", b"")
        with pytest.raises(RecordsUnreadable):
            Keyring((KEY, OTHER)).unseal(sealing.key_id(OTHER), sealed, b"")

    def test_shows_no_key(self) -> None:
        ring = Keyring((KEY,))
        assert base64.b64encode(KEY).decode() not in repr(ring)
        assert repr(KEY) not in repr(ring)
        assert KEY.hex()[:16] != ring.newest_id


class TestKeysInSettings:
    def test_are_read_newest_first(self) -> None:
        text = f" {sealing.write_key(OTHER)} , {sealing.write_key(KEY)}\n"
        assert sealing.read_keys(text) == (OTHER, KEY)

    @pytest.mark.parametrize("text", ["", ",", "secret-but-short", base64.b64encode(bytes(31)).decode(), "é" * 44])
    def test_that_are_none_are_refused_and_not_repeated(self, text: str) -> None:
        with pytest.raises(ValueError, match="32 bytes, base64") as raised:
            sealing.read_keys(text)
        assert "secret" not in str(raised.value)

    def test_are_checked_as_settings_are_read_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", "secret-but-short")
        with pytest.raises(ValidationError) as raised:
            Settings()
        assert "secret" not in str(raised.value)
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", sealing.write_key(KEY))
        assert sealing.write_key(KEY) not in repr(Settings())
        assert sealing.keyring_of(Settings()) == Keyring((KEY,))

    def test_come_from_the_home_where_no_setting_has_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_RECORDS_KEY", "")  # as a deployment's template leaves it
        settings = Settings(home=tmp_path)
        with pytest.raises(RecordsKeyMissing, match="set SFUMATO_RECORDS_KEY"):
            sealing.keyring_of(settings)
        (tmp_path / sealing.KEY_FILE).write_text("no key")
        with pytest.raises(RecordsKeyMissing, match=r"records\.key in the home holds no key"):
            sealing.keyring_of(settings)
        (tmp_path / sealing.KEY_FILE).write_text(sealing.write_key(OTHER) + "\n")
        assert sealing.keyring_of(settings) == Keyring((OTHER,))
