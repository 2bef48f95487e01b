"""The budget of a dataset as a frozen dataclass, with what its charges spent and certify."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato.model.tables import html_bar, html_table, new_frame
from sfumato.privacy.accountant import certified_epsilon, count_jobs, remaining_release_share
from sfumato.privacy.accounting import ATTO, NANO, format_delta, format_epsilon
from sfumato.privacy.ledger import Balance, Head
from sfumato.sizing.job_costs import job_cost
from sfumato.specs import CentralAlgorithm

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]


@dataclass(frozen=True, slots=True)
class Spent:
    """Amounts that the charges of a dataset spent, stated in three ways.

    Attributes
    ----------
    epsilon, delta : float
        Sums of all charges.
    certified_epsilon : float or None
        The epsilon that all charges certify together at `certified_delta`; None if above 32.
    certified_delta : float
        The granted delta, or the charged one under additive accounting.
    certified_shuffled_epsilon : float or None
        The epsilon that all releases of a shuffler certify together at `certified_shuffled_delta`; None if above 32.
    certified_shuffled_delta : float
        As `certified_delta`, towards an observer of releases.
    last_job_id : str or None
        The job that reserved last.
    more_jobs : int or None
        Number of further jobs of its cost.
    """

    epsilon: float
    delta: float
    certified_epsilon: float | None
    certified_delta: float
    certified_shuffled_epsilon: float | None
    certified_shuffled_delta: float
    last_job_id: str | None
    more_jobs: int | None


@dataclass(frozen=True, slots=True)
class Budget:
    """A dataset's balance in nano-epsilon and atto-delta, with the ledger's head."""

    dataset_id: str
    balance: Balance
    remaining_nano: int  # granted - reserved - charged, at least 0
    head: Head
    remaining_delta_atto: int = 0
    remaining_shuffled_nano: int = 0  # granted - charged, towards an observer of releases, at least 0
    remaining_shuffled_delta_atto: int = 0  # under Gaussian accounting, half of the grant is the limit
    last_job_id: str | None = None  # the job that reserved last
    more_jobs: int | None = None  # number of further jobs of its cost

    @property
    def spent(self) -> Spent:
        """Return the amounts that the charges spent, stated in three ways."""
        balance = self.balance
        atto = balance.granted_delta_atto if balance.own_accounting == "gaussian" else balance.charged_delta_atto
        sums = balance.charged_nano / NANO, balance.charged_delta_atto / ATTO
        release_nano, is_gaussian = balance.certified_release_nano, balance.release_accounting == "gaussian"
        release_atto = balance.granted_shuffled_delta_atto if is_gaussian else balance.charged_shuffled_delta_atto
        released = None if release_nano is None else release_nano / NANO, release_atto / ATTO
        return Spent(*sums, self.certified_epsilon, atto / ATTO, *released, self.last_job_id, self.more_jobs)

    @property
    def remaining_shuffled_share(self) -> float | None:
        """Return the part of the budget towards an observer of releases that remains; None if not shuffled."""
        balance = self.balance
        if not balance.granted_shuffled_delta_atto:
            return None
        return remaining_release_share(balance.release_accounting, balance.granted_release_cost, balance.release_cost)

    @property
    def certified_epsilon(self) -> float | None:
        """Return the epsilon that the charges so far certify at the granted delta; None if above 32."""
        balance = self.balance
        nano = certified_epsilon(balance.own_accounting, balance.charged_cost, balance.granted_delta_atto)
        return None if nano is None else nano / NANO

    def remaining_jobs(self, algorithm: CentralAlgorithm, n_features: int, max_per_user: int = 1) -> int:
        """Return how many more jobs with this algorithm over records the budget allows."""
        balance, job = self.balance, job_cost(algorithm, n_features, max_per_user)
        return count_jobs(balance.own_accounting, balance.granted_cost, balance.used_cost, job)

    def to_frame(self) -> "DataFrame":
        """Return the amounts as a DataFrame with a row for epsilon and one for delta. Needs pandas.

        A shuffled dataset has the same rows for the budget towards the service: shuffled_epsilon, shuffled_delta.
        """
        index, parts = ["epsilon", "delta"], [self._amounts()]
        if self.balance.granted_shuffled_nano:
            index, parts = [*index, "shuffled_epsilon", "shuffled_delta"], [*parts, self._shuffled_amounts()]
        scaled = {
            name: [amount for part in parts for amount in (part[name][0] / NANO, part[name][1] / ATTO)]
            for name in parts[0]
        }
        return new_frame(scaled, index=index)

    def _amounts(self) -> dict[str, tuple[int, int]]:
        """Return (nano-epsilon, atto-delta) of each kind of amount."""
        balance = self.balance
        return {
            "granted": (balance.granted_nano, balance.granted_delta_atto),
            "charged": (balance.charged_nano, balance.charged_delta_atto),
            "reserved": (balance.reserved_nano, balance.reserved_delta_atto),
            "remaining": (self.remaining_nano, self.remaining_delta_atto),
        }

    def _shuffled_amounts(self) -> dict[str, tuple[int, int]]:
        """Return (nano-epsilon, atto-delta) of each kind of amount towards an observer of the releases."""
        balance = self.balance
        return {
            "granted": (balance.granted_shuffled_nano, balance.granted_shuffled_delta_atto),
            "charged": (balance.charged_shuffled_nano, balance.charged_shuffled_delta_atto),
            "reserved": (0, 0),  # a release is charged when its round opens
            "remaining": (self.remaining_shuffled_nano, self.remaining_shuffled_delta_atto),
        }

    def _repr_html_(self) -> str:
        amounts = self._amounts()
        parts = [amounts[name][0] for name in ("charged", "reserved", "remaining")]
        has_delta = amounts["granted"][1] > 0
        rows = {
            name: f"ε {format_epsilon(nano)}" + (f", δ {format_delta(atto)}" if has_delta else "")
            for name, (nano, atto) in amounts.items()
        }
        if self.balance.granted_shuffled_nano:
            shuffled = self._shuffled_amounts()
            for name in ("granted", "charged", "remaining"):
                nano, atto = shuffled[name]
                rows[f"{name} towards the service"] = f"ε {format_epsilon(nano)}, δ {format_delta(atto)}"
        return html_table({"dataset": self.dataset_id} | rows, html_bar(parts, amounts["granted"][0]))
