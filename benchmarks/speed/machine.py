"""What the rows were measured on: processor, memory, kernel, versions; no names and no paths."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FILE = "machine.json"
PACKAGES = (
    "sfumato-server", "numpy", "numba", "scipy", "scikit-learn", "pyarrow", "msgspec", "uvicorn", "uvloop", "httptools",
    "fastapi", "sqlalchemy", "psycopg", "redis", "dask", "distributed",
)  # fmt: skip
_GIGABYTE = 1 << 30


def describe() -> dict[str, str]:
    """By name; what cannot be told is left out."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": str(cores),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / _GIGABYTE:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load at the beginning": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
    }
    return {name: text for name, text in told.items() if text}


def write(folder: Path) -> None:
    """Write machine.json."""
    (folder / FILE).write_text(json.dumps(describe(), indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, str]:
    """What machine.json says; nothing where it is not there."""
    path = folder / FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def markdown(told: dict[str, str]) -> str:
    """A table of two columns."""
    return "\n".join(["| machine | |", "|---|---|", *(f"| {name} | {text} |" for name, text in told.items()), ""])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
