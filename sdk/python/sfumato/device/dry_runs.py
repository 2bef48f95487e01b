"""Dry runs: the reports that devices would send, and their cost. A dry run sends and stores nothing.

A dry run perturbs with separate random numbers. Its reports reveal as much as real ones: publishing
one of them costs its epsilon in addition to the cost of the real report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sfumato.device.bulk import REPORT_ID_BYTES, SLOT_BYTES, Reports, perturb_records
from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.privacy.entropy import Entropy
from sfumato.records.described import read_records
from sfumato.records.inputs import Records
from sfumato.specs import RoundSpec

Action = Literal["send", "already_answered", "not_selected", "refuse"]


@dataclass(frozen=True)
class DryRun:
    """The reports that devices would send to a round.

    Attributes
    ----------
    epsilon : float
        Cost of a report for its device, computed from the published integers.
    participating_share : float
        Share of the devices with a draw in the round's interval.
    n_records : int
        Number of devices. `len(reports.slots)` of them participate.
    report_bytes : int
        Size of a report in a batch: id, slot and value.
    reports : Reports
        The perturbed reports.
    """

    epsilon: float
    participating_share: float
    n_records: int
    report_bytes: int
    reports: Reports = field(repr=False)

    @property
    def n_reports(self) -> int:
        """Return the number of devices that would send a report."""
        return len(self.reports.slots)


def dry_run(spec: RoundSpec, records: Records, entropy: Entropy | None = None) -> DryRun:
    """Simulate a round locally with given records.

    Parameters
    ----------
    spec : RoundSpec
        A published specification (`client.get_round(round_id).spec`) or another one.
    records : array-like of shape (n, n_features)
        Finite, in the features' units. Records outside of the bounds are treated as the round states.
    entropy : Entropy, optional
        Source of the devices' random numbers. The default is the operating system.

    Returns
    -------
    DryRun

    Raises
    ------
    InvalidSpec, InvalidPoint
        A device would reject the specification or a record.

    Examples
    --------
    >>> from sfumato import Feature, GridEncoding, dry_run, mechanisms
    >>> from sfumato.specs import RoundSpec
    >>> spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((4,)), mechanisms.design("grr", 4, 10**9))
    >>> dry_run(spec, [[0.1], [0.4], [0.9]])
    DryRun(epsilon=1.0, participating_share=1.0, n_records=3, report_bytes=21)
    """
    read = read_records(spec, records)
    reports = perturb_records(spec, read, entropy)
    return DryRun(
        epsilon=spec.mechanism.epsilon_nano() / NANO,
        participating_share=participating_share(spec),
        n_records=len(read.points),
        report_bytes=REPORT_ID_BYTES + SLOT_BYTES + spec.mechanism.value_bytes,
        reports=reports,
    )


def participating_share(spec: RoundSpec) -> float:
    """Return the share of all draws that lies in a round's interval."""
    return (spec.participation.hi - spec.participation.lo) / DRAW_SPAN


@dataclass(frozen=True, slots=True)
class RoundPreview:
    """The action that a device would take for one open round.

    Attributes
    ----------
    round_id : str
    would : {'send', 'already_answered', 'not_selected', 'refuse'}
    epsilon : float
        Cost of the action, or 0 if it would send no new report.
    probability : float
        For `send` and `refuse`: probability that the round selects this device, which draws at its
        first answer in a collection. It is 1 if the device has a draw already.
    body : mapping or None
        A possible request body, perturbed with separate random numbers.
    keep_reports : bool
        For `send`: whether the service may keep the report after its tally. True if the round does not state it.
    error : SfumatoError or None
        Reason for `refuse`.
    """

    round_id: str
    would: Action
    epsilon: float = 0.0
    probability: float = 1.0
    body: Mapping[str, object] | None = field(default=None, repr=False)
    keep_reports: bool = False
    error: SfumatoError | None = None


@dataclass(frozen=True, slots=True)
class DeviceDryRun:
    """The actions that a device would take now.

    Attributes
    ----------
    rounds : tuple of RoundPreview
        All open rounds in the service's order.
    epsilon : float
        Maximum cost of all actions.
    spent, cap : float
        Epsilon that the device has spent, and the user's cap.
    period : str or None
        The period of `cap_per_period`.
    spent_in_period, cap_in_period : float or None
        Epsilon that the device has spent in the current period, and its cap.
    """

    rounds: tuple[RoundPreview, ...]
    epsilon: float
    spent: float
    cap: float
    period: str | None = None
    spent_in_period: float | None = None
    cap_in_period: float | None = None
