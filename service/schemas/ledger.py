"""Schemas of the ledger and of budgets."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.base import (
    Delta,
    Double,
    Epsilon,
    GrantedEpsilon,
    Wire,
    examples,
)
from service.schemas.fields import (
    Amount,
    Atto,
    Count,
    Cursor,
    DatasetId,
    EntryId,
    JobId,
    Mu2,
    Nano,
    ReleaseDelta,
    Time,
)
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.privacy.shuffling import Pair

EntryKind = TypeAliasType(
    "EntryKind",
    Annotated[
        Literal["grant", "reserve", "charge", "release", "gaussian", "expire"],
        Field(
            description="Kind of a ledger entry. `expire`: a cycle of a series ended, and what it did not spend is no "
            "longer granted."
        ),
    ],
)


Accounting = TypeAliasType(
    "Accounting",
    Annotated[
        Literal["additive", "gaussian"],
        Field(
            description="`additive`: the epsilons of jobs add up, and so do their deltas. `gaussian`: the jobs may be "
            "pure with a sum of at most epsilon, or their mu^2 may sum to at most what epsilon and delta cover. This "
            "allows many more jobs with concentrated blocks. In a shuffled dataset, the mu^2 of releases may sum to "
            "what the shuffled epsilon and half of its delta cover, and their deltas to the other half. This allows "
            "many more rounds."
        ),
    ],
)


class ShuffledGrant(Wire):
    """A budget towards an observer of the releases, if the shuffler and the operator do not work together."""

    epsilon: Epsilon
    delta: ReleaseDelta = Field(description="Delta, 1e-15 to 1e-3.", examples=[1e-6])


def shuffled_grant(body: ShuffledGrant | None) -> Pair:
    """Return the amounts of a shuffled grant in nano-epsilon and atto-delta."""
    return (0, 0) if body is None else (parse_epsilon(body.epsilon), parse_delta(body.delta))


class NewGrant(Wire):
    """An additional grant for a dataset."""

    model_config = examples({"epsilon": 2.0}, {"epsilon": 2.0, "delta": 1e-6})

    epsilon: GrantedEpsilon = Field(description="Additional epsilon; may be 0 if another amount is positive.")
    delta: Delta = Field(
        0.0,
        description="Central only: additional delta, 0 or 1e-15 to 1e-3. The total of a dataset is at most 1e-3.",
    )
    shuffled: ShuffledGrant | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: additional budget towards an observer of the releases."
    )

    @model_validator(mode="after")
    def _of_something(self) -> "NewGrant":
        if self.epsilon == 0 and self.delta == 0 and self.shuffled is None:
            raise PydanticCustomError(
                "grant", "epsilon must lie in [0.000001, 32]; it may be 0 if another amount is positive"
            )
        return self


class SpentBudget(Wire):
    """Amounts that the charges of a dataset spent, stated in three ways."""

    epsilon: Amount = Field(description="Sum of the epsilons of all charges.")
    delta: Amount = Field(description="Sum of the deltas of all charges.")
    certified_epsilon: Amount | None = Field(
        description="Epsilon that all charges certify together at `certified_delta`; null if above 32."
    )
    certified_delta: Amount = Field(description="The granted delta, or the charged one under additive accounting.")
    certified_shuffled_epsilon: Amount | None = Field(
        description="Epsilon that all releases of a shuffler certify together at `certified_shuffled_delta`; null if "
        "above 32."
    )
    certified_shuffled_delta: Amount = Field(
        description="Granted delta towards an observer of releases, or the charged one under additive accounting."
    )
    last_job_id: JobId | None = Field(description="The job that reserved last; null if there is none.")
    more_jobs: Count | None = Field(description="Number of further jobs of its cost; null if there is none.")


class Budget(Wire):
    """Granted, reserved, charged and remaining budget of a dataset, in epsilon and in delta."""

    dataset_id: DatasetId
    accounting: Accounting
    granted: Amount
    reserved: Amount = Field(description="Reserved by unfinished jobs.")
    charged: Amount = Field(description="Spent by rounds and queries.")
    remaining: Amount = Field(
        description="granted - reserved - charged; 0 if negative, which only Gaussian accounting permits."
    )
    certified_epsilon: Amount | None = Field(
        description="Epsilon that the charges so far certify, at the granted delta; null if above 32."
    )
    spent: SpentBudget
    remaining_share: Annotated[Double, Field(ge=0, le=1)] = Field(
        description="Part of the budget that remains, in the terms of its accounting. A shuffled dataset has another "
        "budget beside this one."
    )
    remaining_shuffled_share: Annotated[Double, Field(ge=0, le=1)] | None = Field(
        description="Part of the budget towards an observer of releases that remains, in the terms of its accounting; "
        "null if not shuffled."
    )
    granted_nano: Nano
    reserved_nano: Nano
    charged_nano: Nano
    remaining_nano: Nano
    delta_granted: Amount
    delta_reserved: Amount
    delta_charged: Amount
    delta_remaining: Amount
    granted_delta_atto: Atto
    reserved_delta_atto: Atto
    charged_delta_atto: Atto
    remaining_delta_atto: Atto
    granted_shuffled_nano: Nano = Field(description="Granted towards an observer of releases; 0 if not shuffled.")
    charged_shuffled_nano: Nano = Field(description="Charged towards an observer of releases.")
    remaining_shuffled_nano: Nano = Field(
        description="Granted minus charged; 0 if negative, which only Gaussian accounting permits."
    )
    granted_shuffled_delta_atto: Atto = Field(description="Granted towards an observer of releases.")
    charged_shuffled_delta_atto: Atto = Field(description="Charged towards an observer of releases.")
    remaining_shuffled_delta_atto: Atto = Field(
        description="Granted minus charged; under Gaussian accounting, half of the grant minus charged."
    )
    granted_mu2_pico: Mu2 | None = Field(
        description="Limit of mu^2 in units of 1e-12; null if additive. In a shuffled dataset, releases count."
    )
    reserved_mu2_pico: Mu2 | None = Field(description="Reserved mu^2; null if additive.")
    charged_mu2_pico: Mu2 | None = Field(description="Charged mu^2; null if additive.")
    remaining_mu2_pico: Mu2 | None = Field(description="Remaining mu^2, at least 0; null if additive.")
    ledger_seq: Count = Field(description="Sequence number of the last entry.")
    ledger_hash: str = Field(
        description="Hash of the last entry. Store it to detect a truncated or rewritten ledger later."
    )


class LedgerEntry(Wire):
    """One entry of the ledger; it is never changed or removed.

    `hash` is the SHA-256 of the entry's canonical JSON (sorted keys, no spaces, UTF-8) of all members
    but `epsilon`, `delta` and `hash`, with `at` in integer microseconds since 1970. Members of mu^2 that are null are
    left out.
    """

    id: EntryId
    dataset_id: DatasetId
    seq: Count = Field(description="Sequence number: 1, 2, 3, ... without gaps.")
    kind: EntryKind
    epsilon: Amount
    epsilon_nano: Nano
    delta: Amount
    delta_atto: Atto
    reference: str = Field(
        description="Object of the entry: a grant, job or round, a query of a job over records such as `job_…#0`, or a "
        "cycle of a series such as `ser_…-0`."
    )
    reservation: str | None = Field(description="Job or cycle with the reservation that the entry uses; null if none.")
    actor: str = Field(description="Key that caused the entry.")
    at: Time
    granted_nano: Nano = Field(description="Balance after this entry.")
    reserved_nano: Nano = Field(description="Balance after this entry.")
    charged_nano: Nano = Field(description="Balance after this entry.")
    granted_delta_atto: Atto = Field(description="Balance after this entry.")
    reserved_delta_atto: Atto = Field(description="Balance after this entry.")
    charged_delta_atto: Atto = Field(description="Balance after this entry.")
    shuffled_nano: Nano = Field(description="Amount of the shuffled budget; 0 if the dataset is not shuffled.")
    shuffled_delta_atto: Atto = Field(description="Amount of the shuffled budget.")
    granted_shuffled_nano: Nano = Field(description="Balance after this entry.")
    charged_shuffled_nano: Nano = Field(description="Balance after this entry.")
    granted_shuffled_delta_atto: Atto = Field(description="Balance after this entry.")
    charged_shuffled_delta_atto: Atto = Field(description="Balance after this entry.")
    mu2_pico: Mu2 | None = Field(description="Amount of mu^2 in units of 1e-12; null if additive.")
    granted_mu2_pico: Mu2 | None = Field(description="Limit of mu^2 after this entry; null if additive.")
    reserved_mu2_pico: Mu2 | None = Field(description="Balance after this entry; null if additive.")
    charged_mu2_pico: Mu2 | None = Field(description="Balance after this entry; null if additive.")
    prev_hash: str = Field(description="Hash of the previous entry; zeros for the first.")
    hash: str


class LedgerPage(Wire):
    """Ledger entries, newest first."""

    items: list[LedgerEntry]
    next_cursor: Cursor
