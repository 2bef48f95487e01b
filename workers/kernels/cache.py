"""Portable compiled kernels: an image contains kernels for an architecture level, and its workers load them.

The cache of numba is keyed by the processor name, so kernels of the build machine do not match other machines. The
kernels of an image are therefore compiled for an architecture level that nearly all servers since 2015 support. A
worker on such a machine also compiles for this level, so it finds them. On other machines, or if the operator names a
processor, the worker compiles the kernels at its first start.
"""

import os
import platform
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

CACHE = "NUMBA_CACHE_DIR"
CPU_NAME, CPU_FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"

# `platform.machine()`: (LLVM's name of the level, names in /proc/cpuinfo of the instructions that it requires)
_LEVELS = {
    "x86_64": (
        "x86-64-v3",
        frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave", "cx16", "lahf_lm", "popcnt"})
        | {"pni", "ssse3", "sse4_1", "sse4_2"},
    )
}


def shipped_folder() -> Path:
    """Return the folder of an installation's compiled kernels, which may not exist."""
    return Path(sys.prefix) / "share" / "sfumato" / "kernels"


def compile_portably(environment: MutableMapping[str, str], folder: Path) -> bool:
    """Configure numba to compile for the architecture level and to store the kernels in a folder.

    Call this before numba is imported.

    Returns
    -------
    bool
        False if this machine does not support the level. The environment is then unchanged.
    """
    level = _level()
    if level is None:
        return False
    environment.update({CPU_NAME: level, CPU_FEATURES: "", CACHE: str(folder)})
    return True


def install_kernels(environment: MutableMapping[str, str], folder: Path | None = None) -> bool:
    """Copy the installation's compiled kernels to numba's cache folder, for processes with this environment.

    numba only reads kernels from a folder that it may write to. The operator must name this folder (NUMBA_CACHE_DIR),
    because a user with write access to it controls the code of this process.

    Parameters
    ----------
    environment : mutable mapping
        Environment variables of the processes.
    folder : Path, optional
        Folder that was passed to `compile_portably`; by default `shipped_folder()`.

    Returns
    -------
    bool
        False if there are no kernels for this machine, or the operator chose a processor or no cache folder. The
        environment is then unchanged.
    """
    folder, level = folder or shipped_folder(), _level()
    if level is None or not environment.get(CACHE) or not folder.is_dir():
        return False
    if CPU_NAME in environment or CPU_FEATURES in environment:
        return False
    try:
        _copy(folder, Path(environment[CACHE]))
    except OSError:  # full disk, or no permission: numba compiles the kernels instead
        return False
    environment.update({CPU_NAME: level, CPU_FEATURES: ""})
    return True


def compile_in_memory_without_cache() -> bool:
    """Let numba compile in memory if it can write to no cache folder. Return whether it does.

    Without this, numba fails when a module with a cached kernel is imported. Call this before such an import.
    """
    from numba.core.caching import FunctionCache
    from numba.core.dispatcher import Dispatcher

    try:
        FunctionCache(compile_in_memory_without_cache)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder for the kernels of this file
        setattr(Dispatcher, "enable_caching", lambda _self: None)  # noqa: B010 - mypy refuses the assignment of a method
        log.warning("kernels_not_cached", consequence="each start compiles them again", remedy=f"set {CACHE}")
        return True
    return False


def _copy(source: Path, target: Path) -> None:
    """Copy missing files. Each file appears atomically, because other workers may copy it at the same time."""
    for file in sorted(source.rglob("*")):
        copy = target / file.relative_to(source)
        if file.is_dir() or copy.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = copy.with_name(f".{copy.name}.{os.getpid()}")
        shutil.copyfile(file, partial)
        partial.replace(copy)


def _level() -> str | None:
    """Return the architecture level of shipped kernels, or None if this machine does not support it."""
    name, needed = _LEVELS.get(platform.machine(), ("", frozenset({""})))
    return name if needed <= _instructions() else None


def _instructions() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")]
    return frozenset.intersection(*map(frozenset, lines)) if lines else frozenset()
