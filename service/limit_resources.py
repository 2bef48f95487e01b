"""The wire's resource of a tenant's limits."""

from pydantic import Field

from service.resources import Count
from service.schemas import Wire, example


class Used(Wire):
    """A limit, and what there is of it."""

    limit: Count = Field(description="Most there may be.")
    used: Count | None = Field(description="How many there are; null where the key may not see.")


class Limits(Wire):
    """What a tenant may have at once."""

    model_config = example(
        datasets={"limit": 10_000, "used": 3},
        active_jobs={"limit": 1000, "used": 12},
        max_running_jobs=8,
        max_open_rounds=16,
        max_dataset_records=50_000_000,
    )

    datasets: Used = Field(description="Datasets, deleted ones apart.")
    active_jobs: Used = Field(description="Unfinished jobs. How many there are needs the scope `jobs`.")
    max_running_jobs: Count | None = Field(
        description="Most jobs that have a worker at once; null for as many as there are workers."
    )
    max_open_rounds: Count = Field(description="Most rounds a dataset asks at once.")
    max_dataset_records: Count = Field(description="Most records of a dataset.")
