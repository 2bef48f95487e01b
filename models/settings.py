"""Settings: environment variables `SFUMATO_*`, read once at the start of a process."""

import re
from functools import lru_cache
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from models import sealing

_SCHEDULER = re.compile(r"(tls|tcp)://([a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")  # no user, no path
# As browsers send them: in lower case, without a path or a slash. Apps' own schemes count (capacitor://localhost).
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


class Settings(BaseSettings):
    """What an operator may set. Every default is right for one machine and one tenant."""

    model_config = SettingsConfigDict(env_prefix="SFUMATO_", extra="ignore", hide_input_in_errors=True)

    home: Path = Field(Path(".sfumato"), description="Where the embedded database and the first admin key live.")
    database_url: str | None = Field(
        None,
        repr=False,  # it may hold a password
        description="SQLAlchemy URL; none means SQLite in the home directory (postgresql+psycopg://… for more).",
    )
    redis_url: SecretStr | None = Field(None, description="Redis URL; none means polling the database.")
    records_key: SecretStr | None = Field(
        None,
        description="Keys that encrypt records: 32 bytes, base64; of several, with commas, the first one encrypts.",
    )
    dask_scheduler: str | None = Field(
        None,
        description="Dask scheduler whose workers share big folds and sums over records: tls://host:port.",
    )
    database_pool_size: int = Field(10, ge=2, le=200, description="Connections one process keeps.")
    database_wait_seconds: float = Field(
        10.0, gt=0, le=600, description="Longest wait for a connection or a row that others hold; then 503."
    )

    host: str = Field("127.0.0.1", description="Address the gateway binds.")
    port: int = Field(8000, ge=0, le=65535, description="Port the gateway binds; 0 takes a free one.")
    public_url: str | None = Field(None, description="Address clients know the gateway by, where it is not host:port.")
    trusted_proxies: str = Field(
        "", description="Addresses or networks, with commas, whose X-Forwarded-For is believed; none by default."
    )
    cors_origins: str = Field(
        "",
        description="Origins, with commas, whose pages may fetch rounds and report; * is every one; none by default.",
    )
    drain_seconds: float = Field(
        0.5, ge=0, le=300, description="How long a gateway told to end still takes requests while /readyz says no."
    )
    tracing: bool | None = Field(
        None,
        description="Whether traces are sent; none means where OTEL_EXPORTER_OTLP_ENDPOINT, or that of traces, is set.",
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65534, description="Port of the metrics, on the same host; none means that nobody sees any."
    )

    lease_seconds: float = Field(20.0, gt=0.2, le=3600, description="How long a worker holds a job without renewing.")
    poll_seconds: float = Field(0.05, gt=0, le=60, description="How often an idle worker looks into the database.")
    job_seconds: float = Field(3600.0, gt=0, description="Longest time one attempt at a job may compute.")
    max_attempts: int = Field(5, ge=1, le=100, description="Attempts at a job that dies before it is given up.")
    warm_kernels: bool = Field(True, description="Whether a worker compiles every algorithm before its first job.")

    slow_seconds: float = Field(
        20.0,
        gt=0,
        le=900,
        description="How long a client may take for a head, and for each 20 KiB of a body or its answer; then it goes.",
    )
    max_body_bytes: int = Field(64 << 20, ge=1024, description="Largest request body; larger answers 413.")
    max_batch_reports: int = Field(1_000_000, ge=1, description="Most reports in one request.")
    max_pending_bytes: int = Field(
        256 << 20, ge=1024, description="Reports waiting for their commit in one gateway; beyond it answers 503."
    )
    max_records_bytes: int = Field(256 << 20, ge=1024, description="Largest upload of records; larger answers 413.")
    max_upload_records: int = Field(10_000_000, ge=1, description="Most records in one upload.")
    max_dataset_records: int = Field(50_000_000, ge=1, description="Most records of a dataset.")
    max_page: int = Field(200, ge=1, le=1000, description="Most items on a page.")
    max_wait_seconds: float = Field(60.0, ge=0, le=300, description="Longest long-poll.")
    max_datasets: int = Field(10_000, ge=1, description="Most datasets of a tenant.")
    max_open_rounds: int = Field(16, ge=1, le=64, description="Most rounds a dataset asks at once.")
    max_active_jobs: int = Field(1_000, ge=1, description="Most unfinished jobs of a tenant.")
    max_webhooks: int = Field(10, ge=0, description="Most webhooks of a tenant.")

    webhook_networks: str = Field(
        "",
        description="Networks, with commas, that webhooks may reach though they are private; none by default.",
    )
    webhook_seconds: float = Field(10.0, gt=0, le=60, description="Longest time one attempt at a delivery may take.")
    webhook_retention_days: int = Field(30, ge=7, le=366, description="How long deliveries of webhooks are kept.")

    rate_per_key: int = Field(
        12_000, ge=0, description="Requests a minute of one key, reports and devices apart; 0 is no limit."
    )
    rate_per_device_key: int = Field(
        0,
        ge=0,
        description="The same for sending reports, and for keys that may do nothing else; many devices share one.",
    )
    rate_per_address: int = Field(0, ge=0, description="Requests a minute of one address, probes apart; 0 is no limit.")
    rate_of_failures: int = Field(
        1_000, ge=0, description="Requests a minute of one address without a live key; 0 is no limit."
    )

    @field_validator("records_key")
    @classmethod
    def _are_keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value().strip():
            return None
        sealing.read_keys(value.get_secret_value())
        return value

    @field_validator("tracing")
    @classmethod
    def _is_installed(cls, value: bool | None) -> bool | None:
        from models import tracing  # which knows the settings

        if value and not tracing.is_installed():
            raise ValueError("traces need the extra otel: install sfumato-server[otel], or set it to false")
        return value

    @field_validator("dask_scheduler")
    @classmethod
    def _is_scheduler(cls, value: str | None) -> str | None:
        if not value:
            return None
        if not _SCHEDULER.fullmatch(value):
            raise ValueError("a Dask scheduler is tls://host:port, or tcp://host:port where nobody listens in")
        if find_spec("distributed") is None:
            raise ValueError("a Dask scheduler needs the extra scale: install sfumato-server[scale]")
        return value

    @field_validator("trusted_proxies", "webhook_networks")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        _networks(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        _origins(value)
        return value

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins whose pages may report."""
        return _origins(self.cors_origins)

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The trusted proxies."""
        return _networks(self.trusted_proxies)

    @property
    def allowed_webhook_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """What webhooks may reach in spite of being private."""
        return _networks(self.webhook_networks)

    @property
    def resolved_database_url(self) -> str:
        """The database URL, with the embedded default filled in."""
        return self.database_url or f"sqlite:///{self.home.resolve() / 'sfumato.db'}"

    @property
    def database_file(self) -> Path | None:
        """The file of an embedded database; None where there is none."""
        path = self.resolved_database_url.partition(":///")[2].partition("?")[0] if self.embedded else ""
        return Path(path) if path and path != ":memory:" else None

    @property
    def embedded(self) -> bool:
        """Whether everything lives in one SQLite file on this machine."""
        return self.resolved_database_url.startswith("sqlite")


def _origins(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if found != ("*",) and not all(_ORIGIN.fullmatch(each) for each in found):
        raise ValueError("each is an origin as browsers send it, such as https://app.example, or there is * alone")
    return found


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("each is an address or a network such as 10.0.0.0/8, with commas between them") from None


@lru_cache
def settings() -> Settings:
    """The settings of this process."""
    return Settings()
