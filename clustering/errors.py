"""Errors about reports, tallies, plans and curator budgets. They extend the error tree of `sfumato.errors`.

SfumatoError
├── TooFewReports          a round has too few reports for an estimate
├── TooFewRecords          a noisy count of records is too small for a step
├── TallyMalformed         bytes or arrays are not a tally of the round
├── BudgetOverdrawn        a query costs more epsilon than the curator has left
├── DeltaOverdrawn         a query costs more delta than the curator has left
├── BlockOverdrawn         a query costs more rho than its concentrated block has left
└── InvalidSpec
    └── UnfitRound         a plan or decoder cannot use a published round
"""

from sfumato.errors import InvalidSpec, SfumatoError


class TooFewReports(SfumatoError):
    """A round has fewer reports than its estimate needs."""

    code = "too_few_reports"

    def __init__(self, *, n_reports: int, n_needed: int) -> None:
        super().__init__(
            f"the round is closed with {n_reports} reports, at least {n_needed} are needed: submit a new job, and "
            "collect from more devices or longer"
        )
        self.n_reports = n_reports
        self.n_needed = n_needed


class TooFewRecords(SfumatoError):
    """A noisy number of records is too small for a step. The number cost privacy budget."""

    code = "too_few_records"


class TallyMalformed(SfumatoError):
    """Bytes or arrays are not a tally, or tallies belong to different rounds."""

    code = "tally_malformed"


class UnfitRound(InvalidSpec):
    """A plan cannot continue from a published round, or its reports carry no information."""


class BudgetOverdrawn(SfumatoError):
    """A query costs more epsilon than the curator has left. No noise was drawn."""

    code = "budget_exhausted"

    def __init__(self, *, cost_nano: int, left_nano: int) -> None:
        super().__init__(
            f"a query costs {cost_nano} nano-epsilon, but {left_nano} are left: submit the job with a higher epsilon"
        )
        self.cost_nano = cost_nano
        self.left_nano = left_nano


class DeltaOverdrawn(SfumatoError):
    """A query costs more delta than the curator has left. No noise was drawn."""

    code = "budget_exhausted"

    def __init__(self, *, cost_atto: int, left_atto: int) -> None:
        super().__init__(f"this query costs {cost_atto} atto-delta, {left_atto} are left")
        self.cost_atto = cost_atto
        self.left_atto = left_atto


class BlockOverdrawn(SfumatoError):
    """A query costs more rho than its concentrated block has left. No noise was drawn."""

    code = "budget_exhausted"

    def __init__(self, *, cost_pico: int, left_pico: int) -> None:
        super().__init__(f"this query costs {cost_pico} pico-rho, {left_pico} are left")
        self.cost_pico = cost_pico
        self.left_pico = left_pico
