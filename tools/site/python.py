"""The reference of the Python package as a page: what `sfumato` exports, from its docstrings."""

import sfumato

# What is read together: a heading, and which of the package's modules it is about.
PARTS = (
    ("On a device", ("device", "store", "dry_runs")),
    ("For an analyst", ("client", "jobs", "bulk", "cluster_model", "frames")),
    ("Algorithms over devices' reports", ("specs.algorithms",)),
    ("Algorithms over records", ("specs.central",)),
    ("Rounds", ("specs.rounds", "specs.encodings")),
    ("Errors", ("errors",)),
)


def page() -> str:
    """The Markdown; the lines that begin with `:::` are filled in as the site is built."""
    parts = ["# Python", f"What `import sfumato` {sfumato.__version__} gives. How to begin: [its page](sdk/python.md)."]
    named = {module for _, modules in PARTS for module in modules}
    others = sorted({*sfumato._HOME_OF.values()} - named)
    for heading, modules in (*PARTS, ("And", tuple(others))):
        found = [f"::: sfumato.{module}.{name}" for module in modules for name in exported(module)]
        parts += [f"## {heading}", *found] if found else []
    return "\n\n".join(parts) + "\n"


def exported(module: str) -> list[str]:
    """What the package exports of one of its modules."""
    return [name for name in sfumato.__all__ if sfumato._HOME_OF.get(name) == module]
