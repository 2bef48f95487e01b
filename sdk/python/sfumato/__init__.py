"""Sfumato: report under local differential privacy from a device, read private clusters as an analyst.

    from sfumato import Device, FileStore          # one person's device
    from sfumato import Client, ShiftedGrid        # an analyst
    from sfumato import AsyncClient                # the same, awaited

Names are loaded when first used, so that `import sfumato` costs next to nothing and needs
neither numpy nor httpx.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.bulk import Reports, perturb_records
    from sfumato.client import AsyncClient, Client
    from sfumato.cluster_model import ClusterModel
    from sfumato.device import Answered, Device, Outcome, Receipt
    from sfumato.dry_runs import DeviceDryRun, DryRun, Prospect, dry_run
    from sfumato.errors import (
        ApiProblem,
        CapExceeded,
        InvalidDelta,
        InvalidEpsilon,
        InvalidPoint,
        InvalidSpec,
        JobTimeout,
        ReportMalformed,
        RoundRefused,
        SfumatoError,
        StoreUnusable,
        Unreachable,
    )
    from sfumato.frames import cells_frame, clusters_frame, labels_frame, ledger_frame
    from sfumato.jobs import AsyncSubmittedJob, SubmittedJob
    from sfumato.specs.algorithms import (
        AdaptiveGridIterative,
        AdaptiveGridTree,
        Auto,
        GridKmeans,
        LdpKmeans,
        NoisyFcm,
        PhaseSketch,
        ShiftedGrid,
        UniformGrid,
        ValleyHashing,
    )
    from sfumato.specs.central import (
        DpBisectingKmeans,
        DpDensityPeaks,
        DpKmeans,
        DpQuadtreeKmeans,
        DpUniformGridKmeans,
        GatedGridKmeans,
    )
    from sfumato.specs.encodings import (
        CentroidSignEncoding,
        GridEncoding,
        HalfspaceCodeEncoding,
        LatticeEncoding,
        NearestCentroidEncoding,
        PhaseEncoding,
        ProjectedGridEncoding,
        ShiftedGridEncoding,
        TreeGridEncoding,
    )
    from sfumato.specs.rounds import Draw, Feature
    from sfumato.store import FileStore, MemoryStore

__version__ = "0.1.0"

_HOMES = {
    "bulk": ("Reports", "perturb_records"),
    "client": ("AsyncClient", "Client"),
    "cluster_model": ("ClusterModel",),
    "device": ("Answered", "Device", "Outcome", "Receipt"),
    "dry_runs": ("DeviceDryRun", "DryRun", "Prospect", "dry_run"),
    "errors": (
        "ApiProblem",
        "CapExceeded",
        "InvalidDelta",
        "InvalidEpsilon",
        "InvalidPoint",
        "InvalidSpec",
        "JobTimeout",
        "ReportMalformed",
        "RoundRefused",
        "SfumatoError",
        "StoreUnusable",
        "Unreachable",
    ),
    "frames": ("cells_frame", "clusters_frame", "labels_frame", "ledger_frame"),
    "jobs": ("AsyncSubmittedJob", "SubmittedJob"),
    "specs.algorithms": (
        "AdaptiveGridIterative",
        "AdaptiveGridTree",
        "Auto",
        "GridKmeans",
        "LdpKmeans",
        "NoisyFcm",
        "PhaseSketch",
        "ShiftedGrid",
        "UniformGrid",
        "ValleyHashing",
    ),
    "specs.central": (
        "DpBisectingKmeans",
        "DpDensityPeaks",
        "DpKmeans",
        "DpQuadtreeKmeans",
        "DpUniformGridKmeans",
        "GatedGridKmeans",
    ),
    "specs.encodings": (
        "CentroidSignEncoding",
        "GridEncoding",
        "HalfspaceCodeEncoding",
        "LatticeEncoding",
        "NearestCentroidEncoding",
        "PhaseEncoding",
        "ProjectedGridEncoding",
        "ShiftedGridEncoding",
        "TreeGridEncoding",
    ),
    "specs.rounds": ("Draw", "Feature"),
    "store": ("FileStore", "MemoryStore"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaptiveGridIterative",
    "AdaptiveGridTree",
    "Answered",
    "ApiProblem",
    "AsyncClient",
    "AsyncSubmittedJob",
    "Auto",
    "CapExceeded",
    "CentroidSignEncoding",
    "Client",
    "ClusterModel",
    "Device",
    "DeviceDryRun",
    "DpBisectingKmeans",
    "DpDensityPeaks",
    "DpKmeans",
    "DpQuadtreeKmeans",
    "DpUniformGridKmeans",
    "Draw",
    "DryRun",
    "Feature",
    "FileStore",
    "GatedGridKmeans",
    "GridEncoding",
    "GridKmeans",
    "HalfspaceCodeEncoding",
    "InvalidDelta",
    "InvalidEpsilon",
    "InvalidPoint",
    "InvalidSpec",
    "JobTimeout",
    "LatticeEncoding",
    "LdpKmeans",
    "MemoryStore",
    "NearestCentroidEncoding",
    "NoisyFcm",
    "Outcome",
    "PhaseEncoding",
    "PhaseSketch",
    "ProjectedGridEncoding",
    "Prospect",
    "Receipt",
    "ReportMalformed",
    "Reports",
    "RoundRefused",
    "SfumatoError",
    "ShiftedGrid",
    "ShiftedGridEncoding",
    "StoreUnusable",
    "SubmittedJob",
    "TreeGridEncoding",
    "UniformGrid",
    "Unreachable",
    "ValleyHashing",
    "__version__",
    "cells_frame",
    "clusters_frame",
    "dry_run",
    "labels_frame",
    "ledger_frame",
    "perturb_records",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
