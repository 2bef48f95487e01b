"""Settings of a process: the environment variables `SFUMATO_*`, read once at start-up. An empty one is as unset."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from decimal import Decimal
from functools import lru_cache
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_SCHEDULER = re.compile(r"(tls|tcp)://([a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")  # without user and path
# Browsers send origins in lower case, without a path. Apps use schemes of their own (capacitor://localhost).
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


# Drivers in database URLs, as platforms write them, and the driver that is used.
_DRIVERS = {
    **dict.fromkeys(("postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2"), "postgresql+psycopg"),
    **dict.fromkeys(("sqlite", "sqlite+pysqlite"), "sqlite"),
}
_REDIS_URL = re.compile(
    r"(rediss?://([^/?#]*@)?([^/?#@:]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[0-9]*)?|unix://[^?#]+)(\?.*)?"
)


class Settings(BaseSettings):
    """Settings of the operator. The defaults suit one machine and one tenant."""

    model_config = SettingsConfigDict(
        env_prefix="SFUMATO_", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True
    )

    home: Path = Field(
        Path(".sfumato"),
        validate_default=True,
        description="Directory of the embedded database and the first admin key.",
    )
    database_url: str | None = Field(
        None,
        repr=False,  # it may contain a password
        description="Database URL, postgresql://… or sqlite:///…; none means SQLite in the home directory.",
    )
    database_password: SecretStr | None = Field(
        None, description="Password of the database user, with any characters, if the URL has none."
    )
    redis_password: SecretStr | None = Field(
        None, description="Password of Redis, with any characters, if the URL has none."
    )
    redis_url: SecretStr | None = Field(
        None, description="Redis URL. Without it, workers and gateways poll the database."
    )
    records_key: SecretStr | None = Field(
        None,
        description="Keys for records: 32 bytes each, base64, with commas. The first encrypts; all decrypt.",
    )
    dask_scheduler: str | None = Field(
        None,
        description="Dask scheduler for large aggregations and sums over records: tls://host:port.",
    )
    database_pool_size: int = Field(10, ge=2, le=200, description="Database connections that each process keeps open.")
    database_pooler: bool = Field(
        False, description="Whether PgBouncer in transaction mode, or a similar pooler, is in front of PostgreSQL."
    )
    database_wait_seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Longest wait for a connection or a row lock, in seconds; then the API responds 503.",
    )

    host: str = Field("127.0.0.1", description="Address that the gateway binds.")
    port: int = Field(8000, ge=0, le=65535, description="Port that the gateway binds; 0 selects a free one.")
    public_url: str | None = Field(
        None, description="Address that clients use for the gateway, if it is not host:port."
    )
    trusted_proxies: str = Field(
        "", description="Trusted addresses or networks for X-Forwarded-For, with commas; none by default."
    )
    cors_origins: str = Field(
        "",
        description="Origins that may fetch rounds and send reports, with commas; * allows all; none by default.",
    )
    drain_seconds: float = Field(
        0.5,
        ge=0,
        le=300,
        description="Seconds that a terminating gateway still accepts requests while /readyz fails.",
    )
    tracing: bool | None = Field(
        None,
        description="Whether to send traces; by default if OTEL_EXPORTER_OTLP_ENDPOINT, or that of traces, is set.",
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65534, description="Port of the metrics, on the same host; none serves no metrics."
    )

    lease_seconds: float = Field(
        20.0, gt=0.2, le=3600, description="Lease of a worker on a job, in seconds, without renewal."
    )
    poll_seconds: float = Field(
        0.05, gt=0, le=60, description="Seconds between an idle worker's polls of the database."
    )
    job_seconds: float = Field(3600.0, gt=0, description="Longest computation of one attempt at a job, in seconds.")
    max_attempts: int = Field(5, ge=1, le=100, description="Number of lost workers after which a job fails.")
    worker_drain_seconds: float = Field(
        0.0,
        ge=0,
        description="Seconds that a terminating worker may take to finish its job; then the job returns to the queue.",
    )
    warm_kernels: bool = Field(
        True, description="Whether a worker compiles the kernels of all algorithms while it has no job."
    )

    slow_seconds: float = Field(
        20.0,
        gt=0,
        le=900,
        description="Timeout for a request head, and for each 20 KiB of a request or response body, in seconds.",
    )
    idle_seconds: int = Field(
        65,
        ge=1,
        le=3600,
        description="Seconds after which an idle connection is closed; more than the idle timeout of a proxy.",
    )
    max_body_bytes: int = Field(64 << 20, ge=1024, description="Largest request body; larger ones get status 413.")
    max_batch_reports: int = Field(1_000_000, ge=1, description="Maximum number of reports in one request.")
    device_batch: int = Field(
        16, ge=1, description="Maximum number of reports in one request of a key with scope device only."
    )
    max_pending_bytes: int = Field(
        256 << 20,
        ge=1024,
        description="Maximum memory of reports and points that one gateway reads or stores; above it, status 503.",
    )
    max_records_bytes: int = Field(
        256 << 20, ge=1024, description="Largest upload of records; larger ones get status 413."
    )
    max_upload_records: int = Field(10_000_000, ge=1, description="Maximum number of records in one upload.")
    max_dataset_records: int = Field(50_000_000, ge=1, description="Maximum number of records in a dataset.")
    max_page: int = Field(200, ge=1, le=1000, description="Maximum number of items on a page.")
    max_wait_seconds: float = Field(60.0, ge=0, le=300, description="Longest long poll, in seconds.")
    max_datasets: int = Field(10_000, ge=1, description="Maximum number of datasets per tenant.")
    max_open_rounds: int = Field(16, ge=1, le=64, description="Maximum number of open rounds per dataset.")
    max_active_jobs: int = Field(1_000, ge=1, description="Maximum number of unfinished jobs per tenant.")
    max_dataset_epsilon: Decimal | None = Field(
        None,
        ge=0,
        le=1_000_000,
        decimal_places=9,
        description="Largest ε granted to a dataset by keys; none by default.",
    )
    max_dataset_delta: Decimal | None = Field(
        None,
        ge=0,
        le=Decimal("0.001"),
        decimal_places=18,
        description="Largest δ granted to a dataset by keys; none by default.",
    )
    max_source_epsilon: Decimal | None = Field(
        None,
        ge=0,
        le=1_000_000,
        decimal_places=9,
        description="Largest ε spent by all datasets of one source together; none by default.",
    )
    max_source_delta: Decimal | None = Field(
        None,
        ge=0,
        le=Decimal("0.001"),
        decimal_places=18,
        description="Largest δ spent by all datasets of one source together; none by default.",
    )
    source_limit: Literal["grants", "none"] = Field(
        "grants",
        description="Limit of a source without `max_source_epsilon` and `max_source_delta`. `grants`: all datasets of "
        "a label together, or without a label of one name, spend at most the largest grants of one of them.",
    )
    max_webhooks: int = Field(10, ge=0, description="Maximum number of webhooks per tenant.")

    webhook_networks: str = Field(
        "",
        description="Private networks that webhooks may reach, with commas; none by default.",
    )
    webhook_seconds: float = Field(10.0, gt=0, le=60, description="Timeout of one delivery attempt, in seconds.")
    webhook_retention_days: int = Field(
        30, ge=7, le=366, description="Days after which deliveries of webhooks are deleted."
    )

    rate_per_key: int = Field(
        12_000, ge=0, description="Requests per minute and key, except for reports and device keys; 0 means no limit."
    )
    rate_per_device_key: int = Field(
        0,
        ge=0,
        description="Requests per minute and key for reports and for keys with scope device only; 0 means no limit.",
    )
    rate_per_address: int = Field(
        0, ge=0, description="Requests per minute and address, except for probes; 0 means no limit."
    )
    reports_per_device_key: int = Field(
        600_000,
        ge=0,
        description="Reports per minute and gateway of a key with scope device only; 0 means no limit.",
    )
    reports_per_address: int = Field(
        6_000,
        ge=0,
        description="Reports per minute and gateway of an address with keys of scope device only; 0 means no limit.",
    )
    rate_of_failures: int = Field(
        1_000, ge=0, description="Requests per minute and address without a live key; 0 means no limit."
    )

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: str | None) -> str | None:
        return _parse_database_url(value).render_as_string(hide_password=False) if value else None

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if not _REDIS_URL.fullmatch(value.get_secret_value()):
            raise ValueError(
                "a Redis URL must be redis://host:port/number, rediss://host:port/number or unix:///path; "
                "percent-encode special characters of the password, or put it into SFUMATO_REDIS_PASSWORD"
            )
        return value

    @model_validator(mode="after")
    def _add_passwords(self) -> Self:
        """Add separate passwords to the URLs, so that no other module knows about them."""
        from sqlalchemy.engine import make_url

        password = self.database_password.get_secret_value() if self.database_password else ""
        if password and self.database_url and not self.embedded:
            url = make_url(self.database_url)
            if url.password is None:
                self.database_url = url.set(password=password).render_as_string(hide_password=False)
        password = self.redis_password.get_secret_value() if self.redis_password else ""
        if password and self.redis_url is not None:
            scheme, _, rest = self.redis_url.get_secret_value().partition("://")
            user, at, place = rest.rpartition("@")
            if ":" not in user:
                self.redis_url = SecretStr(f"{scheme}://{user if at else ''}:{quote(password, safe='')}@{place}")
        return self

    @field_validator("home")
    @classmethod
    def _resolve_home(cls, home: Path) -> Path:
        """Return the directory that the path names now, through links. A change of the working directory keeps it."""
        return home.resolve()

    @field_validator("records_key")
    @classmethod
    def _check_keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value().strip():
            return None
        read_keys(value.get_secret_value())
        return value

    @field_validator("tracing")
    @classmethod
    def _check_tracing_installed(cls, value: bool | None) -> bool | None:
        if value and not tracing_is_installed():
            raise ValueError("tracing needs the extra otel: install sfumato-server[otel], or disable it")
        return value

    @field_validator("dask_scheduler")
    @classmethod
    def _check_scheduler(cls, value: str | None) -> str | None:
        if not value:
            return None
        if not _SCHEDULER.fullmatch(value):
            raise ValueError(
                "a Dask scheduler must be tls://host:port, or tcp://host:port in a network without eavesdroppers"
            )
        if find_spec("distributed") is None:
            raise ValueError("a Dask scheduler needs the extra scale: install sfumato-server[scale]")
        return value

    @field_validator("trusted_proxies", "webhook_networks")
    @classmethod
    def _check_networks(cls, value: str) -> str:
        _parse_networks(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        _parse_origins(value)
        return value

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Return the origins that may fetch rounds and send reports."""
        return _parse_origins(self.cors_origins)

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks of the trusted proxies."""
        return _parse_networks(self.trusted_proxies)

    @property
    def allowed_webhook_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the private networks that webhooks may reach."""
        return _parse_networks(self.webhook_networks)

    @property
    def resolved_database_url(self) -> str:
        """Return the database URL. By default it is the embedded database's."""
        return self.database_url or sqlite_url((self.home / "sfumato.db").resolve())

    @property
    def database_file(self) -> Path | None:
        """Return the file of the embedded database, or None if the database is remote or in memory."""
        from sqlalchemy.engine import make_url

        path = make_url(self.resolved_database_url).database if self.embedded else None
        return Path(path) if path and path != ":memory:" else None

    @property
    def embedded(self) -> bool:
        """Return whether the database is a SQLite file on this machine."""
        return self.resolved_database_url.startswith("sqlite")


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file. It quotes the characters of the path that have a meaning in a URL."""
    from sqlalchemy.engine import URL  # imported in functions: commands without a database start faster

    return URL.create("sqlite", database=str(path)).render_as_string()


def _parse_database_url(text: str) -> "URL":
    """Return a URL with the driver that is used. Raise ValueError without repeating a part of the URL."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    driver = _DRIVERS.get(text.partition("://")[0].strip())
    if driver is None:
        raise ValueError(
            "a database URL must start with postgresql:// or sqlite:///; other databases are not supported"
        )
    try:
        url = make_url(text.strip()).set(drivername=driver)
    except (ArgumentError, ValueError):
        url = None
    if driver == "sqlite":
        if url is None or url.host or url.username:
            raise ValueError(
                "the URL of a SQLite file must have three slashes before a relative path, four in total before /"
            )
        if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            url = url.set(database=str(Path(url.database).resolve()))  # also after a change of the working directory
    elif url is None or "@" in (url.host or "") or ("@" in text and url.username is None):
        raise ValueError(
            "the URL cannot be read: write postgresql://user:password@host:port/name, "
            "and percent-encode special characters of the password, or put it into SFUMATO_DATABASE_PASSWORD"
        )
    return url


def _parse_origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    if origins != ("*",) and not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(
            "each origin must have the form that browsers send, such as https://app.example; or use * alone"
        )
    return origins


def _parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(
            "each entry must be an address or a network such as 10.0.0.0/8; separate entries with commas"
        ) from None


@lru_cache
def settings() -> Settings:
    """Return the settings of this process."""
    return Settings()


KEY_BYTES = 32


def read_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys of the setting `records_key`: base64, with commas, newest first.

    Raises
    ------
    ValueError
        If there is no key, or one is not 32 bytes. The message reveals nothing about the keys.
    """
    try:
        keys = tuple(b64decode(part.strip(), validate=True) for part in text.split(","))
    except (NotBase64, ValueError):
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"each key must be {KEY_BYTES} bytes, base64; separate keys with commas") from None
    return keys


def tracing_is_installed() -> bool:
    """Return whether the optional OpenTelemetry packages are installed."""
    try:
        return all(find_spec(f"opentelemetry.{part}") for part in ("sdk", "exporter.otlp.proto.http"))
    except ModuleNotFoundError:  # the parent packages are not installed either
        return False
