"""What can be wrong with reports, tallies and plans: additions to the domain's one error tree.

SfumatoError
├── TooFewReports          nothing, or too little, to estimate from
├── TallyMalformed         bytes or arrays that are no tally of the round
├── BudgetOverdrawn        a question to the curator that its budget does not cover
├── DeltaOverdrawn         the same of its delta
├── BlockOverdrawn         a question in a concentrated block that its rho does not cover
└── InvalidSpec
    └── UnfitRound         a published round the plan or the decoder cannot go on from
"""

from sfumato.errors import InvalidSpec, SfumatoError


class TooFewReports(SfumatoError):
    """A round with fewer reports than its estimate needs."""

    code = "too_few_reports"

    def __init__(self, *, n_reports: int, n_needed: int) -> None:
        super().__init__(f"{n_reports} reports were received, at least {n_needed} are needed")
        self.n_reports = n_reports
        self.n_needed = n_needed


class TallyMalformed(SfumatoError):
    """Bytes that are no tally, arrays of the wrong kind, or tallies of different rounds."""

    code = "tally_malformed"


class UnfitRound(InvalidSpec):
    """A published round that a plan cannot go on from, or whose reports tell nothing."""


class BudgetOverdrawn(SfumatoError):
    """A question that would cost more than the curator has left: nothing was drawn for it."""

    code = "budget_exhausted"

    def __init__(self, *, asked_nano: int, left_nano: int) -> None:
        super().__init__(f"this question costs {asked_nano} nano-epsilon, {left_nano} are left")
        self.asked_nano = asked_nano
        self.left_nano = left_nano


class DeltaOverdrawn(SfumatoError):
    """A question that would cost more delta than the curator has left: nothing was drawn for it."""

    code = "budget_exhausted"

    def __init__(self, *, asked_atto: int, left_atto: int) -> None:
        super().__init__(f"this question costs {asked_atto} atto-delta, {left_atto} are left")
        self.asked_atto = asked_atto
        self.left_atto = left_atto


class BlockOverdrawn(SfumatoError):
    """A question that would take more rho than its concentrated block has left: nothing was drawn for it."""

    code = "budget_exhausted"

    def __init__(self, *, asked_pico: int, left_pico: int) -> None:
        super().__init__(f"this question takes {asked_pico} pico-rho, {left_pico} are left")
        self.asked_pico = asked_pico
        self.left_pico = left_pico
