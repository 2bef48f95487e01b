"""Settings: environment variables `SFUMATO_*`, read once at the start of a process."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from models import sealing


class Settings(BaseSettings):
    """What an operator may set. Every default is right for one machine and one tenant."""

    model_config = SettingsConfigDict(env_prefix="SFUMATO_", extra="ignore", hide_input_in_errors=True)

    home: Path = Field(Path(".sfumato"), description="Where the embedded database and the first admin key live.")
    database_url: str | None = Field(
        None,
        repr=False,  # it may hold a password
        description="SQLAlchemy URL; none means SQLite in the home directory (postgresql+psycopg://… for more).",
    )
    redis_url: SecretStr | None = Field(None, description="Redis URL of the doorbell; none means polling the database.")
    records_key: SecretStr | None = Field(
        None,
        description="Keys that encrypt records: 32 bytes, base64; of several, with commas, the first one encrypts.",
    )
    database_pool_size: int = Field(10, ge=2, le=200, description="Connections one process keeps.")

    host: str = Field("127.0.0.1", description="Address the gateway binds.")
    port: int = Field(8000, ge=0, le=65535, description="Port the gateway binds; 0 takes a free one.")
    public_url: str | None = Field(None, description="Address clients know the gateway by, where it is not host:port.")
    trusted_proxies: str = Field(
        "", description="Addresses or networks, with commas, whose X-Forwarded-For is believed; none by default."
    )
    drain_seconds: float = Field(
        0.5, ge=0, le=300, description="How long a gateway told to end still takes requests while /readyz says no."
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65534, description="Port of the metrics, on the same host; none means that nobody sees any."
    )

    lease_seconds: float = Field(20.0, gt=0.2, le=3600, description="How long a worker holds a job without renewing.")
    poll_seconds: float = Field(0.05, gt=0, le=60, description="How often an idle worker looks into the database.")
    job_seconds: float = Field(3600.0, gt=0, description="Longest time one attempt at a job may compute.")
    max_attempts: int = Field(5, ge=1, le=100, description="Attempts at a job that dies before it is given up.")
    warm_kernels: bool = Field(True, description="Whether a worker compiles every algorithm before its first job.")

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

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        _networks(value)
        return value

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The trusted proxies."""
        return _networks(self.trusted_proxies)

    @property
    def resolved_database_url(self) -> str:
        """The database URL, with the embedded default filled in."""
        return self.database_url or f"sqlite:///{self.home.resolve() / 'sfumato.db'}"

    @property
    def embedded(self) -> bool:
        """Whether everything lives in one SQLite file on this machine."""
        return self.resolved_database_url.startswith("sqlite")


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("each is an address or a network such as 10.0.0.0/8, with commas between them") from None


@lru_cache
def settings() -> Settings:
    """The settings of this process."""
    return Settings()
