"""The identity of a request or command, against which every function of `models` checks access."""

from dataclasses import dataclass

from models.tables.identity import Scope

_DEVICE_ONLY = frozenset({Scope.DEVICE.value})
OPERATOR = "operator"  # actor of CLI commands, which access the database without a key


@dataclass(frozen=True, slots=True)
class Caller:
    """A live key.

    Attributes
    ----------
    key_id, tenant_id : str
    scopes : frozenset of str
    dataset_id : str or None
        The only accessible dataset; None for all datasets of the tenant.
    expires_at : int or None
        Microseconds since the epoch.
    request_id : str or None
        Id of the request, for the audit trail.
    """

    key_id: str
    tenant_id: str
    scopes: frozenset[str]
    dataset_id: str | None
    expires_at: int | None
    request_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Return whether the key has the scope. `admin` includes all scopes."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def is_device_only(self) -> bool:
        """Return whether `device` is the only scope, as of a key that an app contains."""
        return self.scopes == _DEVICE_ONLY

    def sees(self, dataset_id: str) -> bool:
        """Return whether the key may access this dataset of its tenant."""
        return self.dataset_id is None or self.dataset_id == dataset_id


def operator(tenant_id: str) -> Caller:
    """Return the operator's identity, which CLI commands use without an API key."""
    return Caller(OPERATOR, tenant_id, frozenset({Scope.ADMIN}), None, None)
