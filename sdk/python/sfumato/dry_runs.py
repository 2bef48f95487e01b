"""What would be sent, and what it would cost: nothing is sent, and nothing remembered.

A dry run blurs with coins of its own. Its reports are as telling as real ones: whoever
publishes one of them has spent its epsilon, on top of what the real report costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.bulk import REPORT_ID_BYTES, SLOT_BYTES, Reports, perturb_records
from sfumato.entropy import Entropy
from sfumato.errors import SfumatoError
from sfumato.specs import RoundSpec

Would = Literal["send", "already_answered", "not_drawn", "refuse"]


@dataclass(frozen=True)
class DryRun:
    """What devices would send to a round.

    Attributes
    ----------
    epsilon : float
        What answering costs each of them, computed from the published integers.
    share_asked : float
        Share of the devices whose draw lies in the round's interval.
    n_records : int
        Devices there are; `len(reports.slots)` of them were asked.
    report_bytes : int
        Size of a report where many are sent: id, slot, value.
    reports : Reports
        What they would send, blurred.
    """

    epsilon: float
    share_asked: float
    n_records: int
    report_bytes: int
    reports: Reports = field(repr=False)

    @property
    def n_reports(self) -> int:
        """Devices that would send a report."""
        return len(self.reports.slots)


def dry_run(spec: RoundSpec, records: ArrayLike, entropy: Entropy | None = None) -> DryRun:
    """Play a round through with records of your own, here.

    Parameters
    ----------
    spec : RoundSpec
        As published (`client.get_round(round_id).spec`), or of your own making.
    records : array-like of shape (n, n_features)
        In the features' units; clipped to the bounds, finite.
    entropy : Entropy, optional
        The devices' coins: the operating system's by default.

    Returns
    -------
    DryRun

    Raises
    ------
    InvalidSpec, InvalidPoint
        What a device would refuse.

    Examples
    --------
    >>> from sfumato import Feature, GridEncoding, dry_run, mechanisms
    >>> from sfumato.specs import RoundSpec
    >>> spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((4,)), mechanisms.design("grr", 4, 10**9))
    >>> dry_run(spec, [[0.1], [0.4], [0.9]])
    DryRun(epsilon=1.0, share_asked=1.0, n_records=3, report_bytes=21)
    """
    points = np.asarray(records)
    reports = perturb_records(spec, points, entropy)
    return DryRun(
        epsilon=mechanisms.epsilon_nano(spec.mechanism) / NANO,
        share_asked=share_asked(spec),
        n_records=len(points),
        report_bytes=REPORT_ID_BYTES + SLOT_BYTES + mechanisms.value_bytes(spec.mechanism),
        reports=reports,
    )


def share_asked(spec: RoundSpec) -> float:
    """Share of all draws that a round's interval holds."""
    return (spec.draw.hi - spec.draw.lo) / DRAW_SPAN


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a device would do with one open round.

    Attributes
    ----------
    round_id : str
    would : {'send', 'already_answered', 'not_drawn', 'refuse'}
    epsilon : float
        What it would cost; 0 where nothing would be sent anew.
    chance : float
        Of `send` and `refuse`: the chance that the round asks this device, which makes its draw
        when it first answers; 1 where it made it already.
    body : mapping or None
        A body as it might be sent, blurred with coins of its own.
    error : SfumatoError or None
        Why it would refuse.
    """

    round_id: str
    would: Would
    epsilon: float = 0.0
    chance: float = 1.0
    body: Mapping[str, object] | None = field(default=None, repr=False)
    error: SfumatoError | None = None


@dataclass(frozen=True, slots=True)
class DeviceDryRun:
    """What a device would do now.

    Attributes
    ----------
    rounds : tuple of Prospect
        Every open round, in the order the service lists them.
    epsilon : float
        The most that answering them would cost.
    spent, cap : float
        What this device has answered for, and what its user allows.
    """

    rounds: tuple[Prospect, ...]
    epsilon: float
    spent: float
    cap: float
