"""Schemas of sources: the datasets over the same people."""

from typing import Annotated

from pydantic import Field

from service.schemas.base import Double, Name, Wire
from service.schemas.datasets import Source as Label
from service.schemas.datasets import TrustModel
from service.schemas.fields import Amount, Count, DatasetId, LimitRule, Mu2, Time
from service.schemas.ledger import Accounting


class SourceDataset(Wire):
    """A dataset of a source with its costs."""

    id: DatasetId
    name: Name
    trust: TrustModel
    accounting: Accounting
    created_at: Time
    deleted_at: Time | None = Field(description="Time of the deletion; null if the dataset is not deleted.")
    granted: Amount
    reserved: Amount = Field(description="Epsilon reserved by unfinished jobs.")
    charged: Amount = Field(description="Charged epsilon.")
    delta_granted: Amount = Field(description="Sum of both grants of a shuffled dataset, as for the other deltas.")
    delta_reserved: Amount
    delta_charged: Amount


class SourceLimit(Wire):
    """The most that the datasets of a source may spend together."""

    rule: LimitRule
    epsilon: Amount | None = Field(description="Largest epsilon; null for no limit.")
    shuffled_epsilon: Amount | None = Field(
        description="Largest epsilon towards an observer of releases; null for no limit."
    )
    delta: Amount | None = Field(description="Largest delta; null for no limit.")
    mu2_pico: Mu2 | None = Field(description="Largest mu^2 in units of 1e-12; null unless it counts.")
    remaining: Amount | None = Field(
        description="Epsilon that remains of the limit as a sum, at least 0; null for no limit."
    )
    remaining_share: Annotated[Double, Field(ge=0, le=1)] | None = Field(
        description="Part of the limit that remains, in the terms of the accounting; null for no limit."
    )


class Source(Wire):
    """Costs of the same people: sums over all datasets of a source, deleted ones included."""

    source: Label | None = Field(description="Label of the people; null for datasets without a label.")
    name: Name | None = Field(description="Name that selects the datasets; null if they have any name.")
    n_datasets: Count = Field(description="Number of datasets, deleted ones included.")
    datasets: list[SourceDataset] = Field(description="The datasets, newest first, at most 200.")
    accounting: Accounting = Field(
        description="`gaussian` if all datasets with costs have it, and all or none of them are shuffled."
    )
    charged: Amount = Field(description="Charged epsilon.")
    reserved: Amount = Field(description="Reserved epsilon.")
    shuffled_charged: Amount = Field(description="Charged epsilon towards an observer of releases.")
    certified_shuffled_epsilon: Amount | None = Field(
        description="Epsilon that all releases certify together at the delta of the limit, or their sum if additive; "
        "null if above 32."
    )
    delta_charged: Amount = Field(description="Charged delta.")
    delta_reserved: Amount = Field(description="Reserved delta.")
    charged_mu2_pico: Mu2 | None = Field(description="Charged mu^2 in units of 1e-12; null if additive.")
    reserved_mu2_pico: Mu2 | None = Field(description="Reserved mu^2; null if additive.")
    certified_epsilon: Amount | None = Field(
        description="Epsilon that all charges certify together at the delta of the limit, or at the charged delta if "
        "additive; null if above 32, or without a limit of delta."
    )
    limit: SourceLimit
