"""Settings: from the environment, right by default, silent about passwords."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from models.settings import Settings


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SFUMATO_{name.upper()}", raising=False)


class TestSettings:
    def test_by_default_are_those_of_one_machine(self) -> None:
        found = Settings()

        assert found.embedded
        assert found.resolved_database_url == f"sqlite:///{Path('.sfumato').resolve() / 'sfumato.db'}"
        assert (found.redis_url, found.host) == (None, "127.0.0.1")

    def test_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql+psycopg://u@127.0.0.1/x")
        monkeypatch.setenv("SFUMATO_LEASE_SECONDS", "7.5")

        found = Settings()

        assert (found.resolved_database_url, found.embedded) == ("postgresql+psycopg://u@127.0.0.1/x", False)
        assert found.lease_seconds == 7.5

    @pytest.mark.parametrize(
        ("name", "value"), [("LEASE_SECONDS", "0"), ("MAX_ATTEMPTS", "0"), ("PORT", "70000"), ("MAX_PAGE", "many")]
    )
    def test_out_of_range_are_refused(self, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
        monkeypatch.setenv(f"SFUMATO_{name}", value)

        with pytest.raises(ValidationError):
            Settings()

    def test_do_not_show_their_passwords(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql+psycopg://u:hunter2@127.0.0.1/x")
        monkeypatch.setenv("SFUMATO_REDIS_URL", "redis://:hunter2@127.0.0.1/0")

        found = Settings()

        assert "hunter2" not in repr(found) + str(found)
        assert found.redis_url is not None
        assert "hunter2" in found.redis_url.get_secret_value()

    @pytest.mark.parametrize("address", ["tls://dask.example:8786", "tcp://127.0.0.1:8786", "tls://[::1]:8786"])
    def test_name_a_scheduler(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", address)

        assert Settings().dask_scheduler == address

    def test_an_empty_name_is_no_scheduler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", "")

        assert Settings().dask_scheduler is None

    @pytest.mark.parametrize(
        "address", ["dask.example", "http://dask.example:1", "tls://u:hunter2@dask.example:1", "tls://a:1/x"]
    )
    def test_refuse_what_is_no_scheduler_and_do_not_show_it(
        self, monkeypatch: pytest.MonkeyPatch, address: str
    ) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", address)

        with pytest.raises(ValidationError, match="tls://host:port") as refused:
            Settings()

        assert "hunter2" not in str(refused.value)

    def test_say_so_where_the_extra_for_a_scheduler_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("models.settings.find_spec", lambda name: None)

        with pytest.raises(ValidationError, match=r"sfumato-server\[scale\]"):
            Settings(dask_scheduler="tls://dask.example:8786")

    def test_each_say_what_they_are_for(self) -> None:
        assert [name for name, field in Settings.model_fields.items() if name != "home" and not field.description] == []
