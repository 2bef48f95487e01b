"""Compiled kernels that come with the software: made once for all machines of a family, used where the machine can.

numba keeps what it compiled by the name of the processor it compiled for, so kernels of the machine that built an
image are none for the machine that runs it. Those of an image are for a level that nearly every server has had since
2015; where a machine has it, its worker compiles for that level as well and so finds them. Elsewhere, and where the
operator names a processor, kernels are compiled at the first start.
"""

import os
import platform
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

CACHE = "NUMBA_CACHE_DIR"
CPU_NAME, CPU_FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"

# By `platform.machine()`: LLVM's name of the level, and what Linux calls the instructions that it has.
_LEVELS = {
    "x86_64": (
        "x86-64-v3",
        frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave", "cx16", "lahf_lm", "popcnt"})
        | {"pni", "ssse3", "sse4_1", "sse4_2"},
    )
}


def shipped() -> Path:
    """Where an installation holds kernels that came with it, if any did."""
    return Path(sys.prefix) / "share" / "sfumato" / "kernels"


def portable(environment: MutableMapping[str, str], folder: Path) -> bool:
    """Have numba, which is not loaded yet, compile for the whole family, and keep that in the folder.

    Returns
    -------
    bool
        False where this machine cannot, and nothing was changed.
    """
    level = _level()
    if level is None:
        return False
    environment.update({CPU_NAME: level, CPU_FEATURES: "", CACHE: str(folder)})
    return True


def use(environment: MutableMapping[str, str], folder: Path | None = None) -> bool:
    """Have processes with this environment find the kernels that came with the software.

    They are copied to where numba may write, since it reads from no other place. That has to be named by the
    operator (NUMBA_CACHE_DIR): whoever can write there decides what this process runs.

    Parameters
    ----------
    environment : mutable mapping
    folder : Path, optional
        What `portable` was given; `shipped()` by default.

    Returns
    -------
    bool
        False where there are none for this machine, or an operator has chosen otherwise; nothing was changed.
    """
    folder, level = folder or shipped(), _level()
    if level is None or not environment.get(CACHE) or not folder.is_dir():
        return False
    if CPU_NAME in environment or CPU_FEATURES in environment:
        return False
    try:
        _copy(folder, Path(environment[CACHE]))
    except OSError:  # a full disk, another's folder: they can be compiled all the same
        return False
    environment.update({CPU_NAME: level, CPU_FEATURES: ""})
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy what is not there yet, each file in one step: other workers may be about to do the same."""
    for file in sorted(source.rglob("*")):
        there = target / file.relative_to(source)
        if file.is_dir() or there.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partly = there.with_name(f".{there.name}.{os.getpid()}")
        shutil.copyfile(file, partly)
        partly.replace(there)


def _level() -> str | None:
    """The level kernels are shipped for, where this machine has it."""
    name, needed = _LEVELS.get(platform.machine(), ("", frozenset({""})))
    return name if needed <= _instructions() else None


def _instructions() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")]
    return frozenset.intersection(*map(frozenset, lines)) if lines else frozenset()
