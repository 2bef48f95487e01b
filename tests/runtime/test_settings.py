"""Settings: defaults, environment variables, ranges, and hidden passwords."""

from pathlib import Path
from urllib.parse import quote

import pytest
import redis.connection
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from sqlalchemy.engine import make_url

from models.database.schema import migrate
from runtime.settings import Settings, sqlite_url


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SFUMATO_{name.upper()}", raising=False)


class TestSettings:
    def test_defaults_suit_one_machine(self) -> None:
        settings = Settings()

        assert settings.embedded
        assert settings.resolved_database_url == f"sqlite:///{Path('.sfumato').resolve() / 'sfumato.db'}"
        assert (settings.redis_url, settings.host) == (None, "127.0.0.1")

    def test_environment_variables_override_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql+psycopg://u@127.0.0.1/x")
        monkeypatch.setenv("SFUMATO_LEASE_SECONDS", "7.5")

        settings = Settings()

        assert (settings.resolved_database_url, settings.embedded) == ("postgresql+psycopg://u@127.0.0.1/x", False)
        assert settings.lease_seconds == 7.5

    @pytest.mark.parametrize(
        ("name", "value"), [("LEASE_SECONDS", "0"), ("MAX_ATTEMPTS", "0"), ("PORT", "70000"), ("MAX_PAGE", "many")]
    )
    def test_values_out_of_range_are_rejected(self, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
        monkeypatch.setenv(f"SFUMATO_{name}", value)

        with pytest.raises(ValidationError):
            Settings()

    def test_repr_hides_passwords(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql+psycopg://u:hunter2@127.0.0.1/x")
        monkeypatch.setenv("SFUMATO_REDIS_URL", "redis://:hunter2@127.0.0.1/0")

        settings = Settings()

        assert "hunter2" not in repr(settings) + str(settings)
        assert settings.redis_url is not None
        assert "hunter2" in settings.redis_url.get_secret_value()

    @pytest.mark.parametrize("address", ["tls://dask.example:8786", "tcp://127.0.0.1:8786", "tls://[::1]:8786"])
    def test_scheduler_address_is_accepted(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", address)

        assert Settings().dask_scheduler == address

    def test_empty_address_means_no_scheduler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", "")

        assert Settings().dask_scheduler is None

    @pytest.mark.parametrize(
        "address", ["dask.example", "http://dask.example:1", "tls://u:hunter2@dask.example:1", "tls://a:1/x"]
    )
    def test_invalid_scheduler_is_rejected_without_its_password(
        self, monkeypatch: pytest.MonkeyPatch, address: str
    ) -> None:
        monkeypatch.setenv("SFUMATO_DASK_SCHEDULER", address)

        with pytest.raises(ValidationError, match="tls://host:port") as refused:
            Settings()

        assert "hunter2" not in str(refused.value)

    def test_scheduler_without_its_extra_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("runtime.settings.find_spec", lambda name: None)

        with pytest.raises(ValidationError, match=r"sfumato-server\[scale\]"):
            Settings(dask_scheduler="tls://dask.example:8786")

    def test_every_setting_has_a_description(self) -> None:
        assert [name for name, field in Settings.model_fields.items() if name != "home" and not field.description] == []


SECRET = "hunter2"
WORDS = st.text("abc-_.~!*@:/?#%& é", min_size=1, max_size=8)
DRIVERS = {
    **dict.fromkeys(["postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2"], "postgresql+psycopg"),
    **dict.fromkeys(["mysql", "postgresql+asyncpg", "sqlite+aiosqlite", "mongodb", "https", "", "Postgres"]),
}
HOSTS = st.sampled_from([("db.example", "db.example"), ("10.0.0.1", "10.0.0.1"), ("[::1]", "::1"), ("", None)])


def refusal(**given: str) -> str:
    """Return the message of settings that are rejected. It does not repeat the URL."""
    with pytest.raises(ValidationError) as caught:
        Settings(**given)  # type: ignore[arg-type]
    (error,) = caught.value.errors()
    assert error["loc"] == tuple(given)
    assert SECRET not in str(caught.value)
    return str(error["msg"])


class TestUrls:
    @given(
        driver=st.sampled_from(sorted(DRIVERS)),
        user=WORDS,
        word=WORDS,
        is_encoded=st.booleans(),
        host=HOSTS,
        port=st.sampled_from([("", None), (":5433", 5433), (":port", ...), (":", ...)]),
        query=st.sampled_from(["", "?sslmode=require"]),
    )
    def test_of_a_database_arrive_exactly_or_are_rejected(
        self,
        driver: str,
        user: str,
        word: str,
        is_encoded: bool,
        host: tuple[str, str | None],
        port: tuple[str, object],
        query: str,
    ) -> None:
        password = SECRET + word
        quoted = (quote(user, safe=""), quote(password, safe="")) if is_encoded else (user, password)
        url = f"{driver}://{quoted[0]}:{quoted[1]}@{host[0]}{port[0]}/name{query}"
        if DRIVERS[driver] is None:
            assert "must start with postgresql:// or sqlite:///" in refusal(database_url=url)
            return
        try:
            found = make_url(Settings(database_url=url).resolved_database_url)
        except ValidationError:
            message = refusal(database_url=url)
            assert "percent-encode special characters of the password" in message
            assert not is_encoded or not isinstance(port[1], int | None)
            return
        assert found.drivername == DRIVERS[driver]
        if is_encoded:
            assert (found.username, found.password, found.host) == (user, password, host[1])
            assert (found.port, found.database) == (port[1] if isinstance(port[1], int) else None, "name")

    @given(password=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20))
    def test_take_a_separate_password_with_any_characters(self, password: str) -> None:
        given = {"database_password": SecretStr(password), "redis_password": SecretStr(password)}
        for redis_url in ("redis://h:6379/1", "redis://user@h", "unix:///run/redis.sock?db=1"):
            settings = Settings(database_url="postgresql://u@h/name", redis_url=SecretStr(redis_url), **given)
            assert make_url(settings.resolved_database_url).password == password
            assert settings.redis_url is not None
            found = redis.connection.parse_url(settings.redis_url.get_secret_value())
            assert found["password"] == password
            assert found.get("username", "") == ("user" if "user" in redis_url else "")
        own = Settings(database_url="postgresql://u:own@h/name", redis_url=SecretStr("redis://:own@h"), **given)
        assert make_url(own.resolved_database_url).password == "own"
        assert own.redis_url == SecretStr("redis://:own@h")

    @pytest.mark.parametrize("url", ["garbage", "postgresql:/db", "postgresql", "sqlite://host/x", "sqlite:x", "://"])
    def test_of_a_database_that_cannot_be_read_are_rejected(self, url: str) -> None:
        assert "URL" in refusal(database_url=url)

    @pytest.mark.parametrize("word", ["12/w", "p?w=1"])
    def test_a_password_is_not_taken_for_another_part(self, word: str) -> None:
        url = make_url(Settings(database_url=f"postgresql://u:{word}@h/name").resolved_database_url)
        assert (url.password, url.host, url.database) == (word, "h", "name")

    @given(name=st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
    def test_of_a_file_keep_every_path(self, name: str) -> None:
        path = Path("/") / name / "sfumato.db"
        assert Path(str(make_url(sqlite_url(path)).database)) == path
        assert Settings(database_url=sqlite_url(path)).database_file == path.resolve()

    def test_of_files_are_resolved_once_through_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "volume").mkdir()
        (tmp_path / "home").symlink_to("volume")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SFUMATO_HOME", "home")
        settings, other = Settings(), Settings(database_url="sqlite:///home/other.db")
        monkeypatch.chdir("/")
        assert settings.home == tmp_path / "volume"
        assert settings.database_file == tmp_path / "volume" / "sfumato.db"
        assert other.database_file == tmp_path / "volume" / "other.db"

    def test_that_are_empty_in_the_environment_are_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unset = Settings()
        for name in Settings.model_fields:
            monkeypatch.setenv(f"SFUMATO_{name.upper()}", "")
        assert Settings() == unset

    @pytest.mark.parametrize("name", ["feature%2Fx", "a%20b", "what?", "a#b", "C:d", "é"])
    def test_a_home_with_any_name_contains_its_database(self, tmp_path: Path, name: str) -> None:
        home = tmp_path / name
        settings = Settings(home=home)
        migrate(settings.resolved_database_url)
        assert (home / "sfumato.db").stat().st_mode & 0o777 == 0o600
        assert [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != home] == []

    @pytest.mark.parametrize(
        "url",
        [
            "redis://h",
            "redis://h:6379/0",
            f"rediss://:{SECRET}@h:6379/0?ssl_cert_reqs=none",
            f"redis://u:{SECRET}%2F@[::1]/1",
            "unix:///run/redis.sock?db=1",
        ],
    )
    def test_of_redis_are_accepted(self, url: str) -> None:
        settings = Settings(redis_url=SecretStr(url))
        assert settings.redis_url is not None
        assert redis.connection.parse_url(settings.redis_url.get_secret_value())

    @pytest.mark.parametrize(
        "url",
        [
            "h:6379",
            "http://h",
            "redis+sentinel://h/x",
            f"redis://:{SECRET}#@h",
            "redis://h:port",
            "redis://h/name",
            "redis:///0",
            "unix://",
        ],
    )
    def test_of_redis_that_cannot_be_read_are_rejected(self, url: str) -> None:
        assert "a Redis URL must be redis://" in refusal(redis_url=url)
