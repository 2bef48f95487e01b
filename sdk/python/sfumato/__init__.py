"""Sfumato's SDK: perturbed reports from devices, and private clusters for analysts.

    from sfumato import Device, FileStore          # device of one person
    from sfumato import Client, ShiftedGrid        # analyst
    from sfumato import AsyncClient                # analyst, asynchronous

The first use of a name loads its module. `import sfumato` alone loads neither numpy nor httpx.
"""

# ruff: isort: skip_file
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.api.client import AsyncClient as AsyncClient, Client as Client
    from sfumato.api.submitted_jobs import AsyncSubmittedJob as AsyncSubmittedJob, SubmittedJob as SubmittedJob
    from sfumato.device.checks import RecordCheck as RecordCheck
    from sfumato.device.bulk import Reports as Reports, perturb_records as perturb_records
    from sfumato.device.device import Device as Device
    from sfumato.device.outcomes import Outcome as Outcome, Receipt as Receipt, RoundOutcome as RoundOutcome
    from sfumato.device.dry_runs import (
        DeviceDryRun as DeviceDryRun,
        DryRun as DryRun,
        RoundPreview as RoundPreview,
        dry_run as dry_run,
    )
    from sfumato.device.shuffled import ShuffledDevice as ShuffledDevice
    from sfumato.device.store import FileStore as FileStore, MemoryStore as MemoryStore
    from sfumato.errors import (
        ApiProblem as ApiProblem,
        CapExceeded as CapExceeded,
        InvalidDelta as InvalidDelta,
        InvalidEpsilon as InvalidEpsilon,
        InvalidPoint as InvalidPoint,
        InvalidSetting as InvalidSetting,
        InvalidSpec as InvalidSpec,
        JobTimeout as JobTimeout,
        ReportMalformed as ReportMalformed,
        RoundRefused as RoundRefused,
        SfumatoError as SfumatoError,
        StoreUnusable as StoreUnusable,
        Unreachable as Unreachable,
    )
    from sfumato.forecast.sweeps import Sweep as Sweep, SweepPoint as SweepPoint, sweep as sweep
    from sfumato.model.cluster_model import ClusterModel as ClusterModel
    from sfumato.model.frames import (
        cells_frame as cells_frame,
        clusters_frame as clusters_frame,
        labels_frame as labels_frame,
        ledger_frame as ledger_frame,
    )
    from sfumato.profiles.cluster_profile import ClusterProfile as ClusterProfile, Distinguishing as Distinguishing
    from sfumato.plotting.figures import plot as plot
    from sfumato.specs.algorithms import *  # noqa: F403
    from sfumato.specs.attributes import Categorical as Categorical, Numeric as Numeric
    from sfumato.specs.central import *  # noqa: F403
    from sfumato.specs.encodings import (
        CentroidSignEncoding as CentroidSignEncoding,
        GridEncoding as GridEncoding,
        LatticeEncoding as LatticeEncoding,
        NearestCentroidEncoding as NearestCentroidEncoding,
        ShiftedGridEncoding as ShiftedGridEncoding,
        TreeGridEncoding as TreeGridEncoding,
    )
    from sfumato.specs.phases import PhaseEncoding as PhaseEncoding
    from sfumato.specs.rounds import (
        Embedding as Embedding,
        Feature as Feature,
        Participation as Participation,
        Place as Place,
    )

__version__ = "0.1.0"

_HOMES = {
    "device.checks": ("RecordCheck",),
    "device.bulk": ("Reports", "perturb_records"),
    "api.client": ("AsyncClient", "Client"),
    "forecast.sweeps": ("Sweep", "SweepPoint", "sweep"),
    "model.cluster_model": ("ClusterModel",),
    "profiles.cluster_profile": ("ClusterProfile", "Distinguishing"),
    "device.device": ("Device",),
    "device.outcomes": ("Outcome", "Receipt", "RoundOutcome"),
    "device.dry_runs": ("DeviceDryRun", "DryRun", "RoundPreview", "dry_run"),
    "errors": (
        "ApiProblem",
        "CapExceeded",
        "InvalidDelta",
        "InvalidEpsilon",
        "InvalidPoint",
        "InvalidSetting",
        "InvalidSpec",
        "JobTimeout",
        "ReportMalformed",
        "RoundRefused",
        "SfumatoError",
        "StoreUnusable",
        "Unreachable",
    ),
    "model.frames": ("cells_frame", "clusters_frame", "labels_frame", "ledger_frame"),
    "api.submitted_jobs": ("AsyncSubmittedJob", "SubmittedJob"),
    "plotting.figures": ("plot",),
    "specs.encodings": (
        "CentroidSignEncoding",
        "GridEncoding",
        "LatticeEncoding",
        "NearestCentroidEncoding",
        "ShiftedGridEncoding",
        "TreeGridEncoding",
    ),
    "specs.phases": ("PhaseEncoding",),
    "specs.rounds": ("Participation", "Embedding", "Feature", "Place"),
    "specs.attributes": ("Categorical", "Numeric"),
    "device.shuffled": ("ShuffledDevice",),
    "device.store": ("FileStore", "MemoryStore"),
}
_ALGORITHM_HOMES = ("specs.algorithms", "specs.central")  # their `__all__` lists the algorithms


@cache
def _homes() -> dict[str, str]:
    """Return the module of each public name."""
    algorithms = {name: home for home in _ALGORITHM_HOMES for name in import_module(f"sfumato.{home}").__all__}
    return algorithms | {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name not in _homes():
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.{_homes()[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
