"""Check that randomness comes only from `sfumato.privacy.entropy` and, built on it, `clustering.central.noise`.

The check parses every shipped source file. Any use of randomness, secure or seeded, is a fault unless `ALLOWED` lists
it with its reason. An unused entry of `ALLOWED` is a fault too. The check detects imports, attributes, calls that
import by name, device files and builtins. It cannot detect randomness inside another library.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from audit.checks.check import Check, Finding, Setting

PACKAGES = ("sfumato", "clustering", "workers", "models", "runtime", "connections", "service", "shuffler")

ALLOWED: dict[tuple[str, str], str] = {
    ("sfumato/privacy/entropy.py", "os.urandom"): "the source itself",
    ("clustering/random.py", "numpy.random"): "simulations, and public numbers from a job's seed",
    ("clustering/simulate.py", "SeededEntropy"): "simulates algorithms on synthetic points",
    (
        "clustering/density/synthetic_rounds.py",
        "numpy.random",
    ): "post-processing: synthetic devices, halves of tallies",
    ("clustering/density/count_fit.py", "numpy.random"): "post-processing: simulated records and counts",
    ("clustering/phases/halves.py", "numpy.random"): "post-processing: halves of counts of phases",
    ("clustering/centroids/noisy_fcm.py", "numpy.random"): "public start from the seed in the job's parameters",
    (
        "clustering/centroids/centroid_statistics.py",
        "numpy.random",
    ): "public start from the seed in the job's parameters",
    ("workers/kernels/warmup.py", "SeededEntropy"): "synthetic points for the compilation of kernels",
    ("workers/aggregation/id_set.py", "secrets"): "keys of a hash table of report ids; never released",
    ("models/collection/distinct_reports.py", "secrets"): "factors of the fingerprints of report ids; never released",
    ("models/identity/console_sessions.py", "secrets"): "tokens of the console's sessions",
    ("runtime/change_publisher.py", "secrets"): "name of a process on the channel",
    ("models/database/types.py", "secrets"): "ids of rows",
    ("models/database/engine.py", "secrets"): "pause before a transaction is retried",
    ("models/encryption.py", "secrets"): "keys and nonces of records at rest",
    ("models/identity/keys.py", "secrets"): "API keys",
    ("models/webhooks/webhooks.py", "secrets"): "secrets that sign webhooks",
    ("shuffler/queue.py", "secrets"): "keys of senders and secrets of rounds",
    ("shuffler/steps.py", "random"): "the system's generator permutes a release",
    ("connections/problems.py", "secrets"): "name of a process in request ids",
    ("service/webhooks/sender.py", "secrets"): "pause before a webhook is retried",
}

# Modules, including their submodules, and their names in findings.
_MODULES = {
    name: name
    for name in ("random", "secrets", "uuid", "numpy.random", "torch", "jax", "tensorflow", "cupy", "Crypto", "nacl")
}
# Names that make random numbers, imported from any module.
_NAMES = {
    **dict.fromkeys(("urandom", "getrandom"), "os.urandom"),
    **dict.fromkeys(
        ("random", "default_rng", "RandomState", "SeedSequence", "PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"),
        "numpy.random",
    ),
    **dict.fromkeys(("uuid1", "uuid4"), "uuid"),
    **dict.fromkeys(("rvs", "random_state"), "scipy"),
    **dict.fromkeys(("SystemRandom", "getrandbits", "randbytes"), "random"),
    **dict.fromkeys(("token_bytes", "token_hex", "token_urlsafe", "randbits"), "secrets"),
    **dict.fromkeys(("RAND_bytes", "generate_key"), "third-party randomness"),
    "SeededEntropy": "SeededEntropy",
}
_DEVICES = ("/dev/urandom", "/dev/random")
_IMPORT_BY_NAME = ("__import__", "import_module", "getattr")


@lru_cache(maxsize=1024)
def find_randomness(source: str) -> frozenset[str]:
    """Return every form of randomness in a source text, by the names in `ALLOWED`."""
    return frozenset(form for node in ast.walk(ast.parse(source)) for form in _find_forms(node))


def _find_forms(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _match_module(alias.name)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from _match_module(node.module or "")
        for alias in node.names:
            yield from _match_module(f"{node.module}.{alias.name}")
            yield from _match_name(alias.name)
    elif isinstance(node, ast.Attribute):
        yield from _match_name(node.attr)
    elif isinstance(node, ast.keyword):
        yield from _match_name(node.arg or "") if node.arg == "random_state" else ()
    elif isinstance(node, ast.Constant) and node.value in _DEVICES:
        yield "os.urandom"
    elif isinstance(node, ast.Call):
        yield from _match_call(node)


def _match_call(node: ast.Call) -> Iterator[str]:
    function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if function == "hash" and isinstance(node.func, ast.Name):
        yield "hash()"  # Python seeds the hash of texts per process
    if function in _IMPORT_BY_NAME:
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield from _match_module(argument.value)
                yield from _match_name(argument.value)


def _match_module(name: str) -> Iterator[str]:
    for module, form in _MODULES.items():
        if name == module or name.startswith(f"{module}."):
            yield form


def _match_name(name: str) -> Iterator[str]:
    if name in _NAMES:
        yield _NAMES[name]


def read_sources() -> dict[str, str]:
    """Return the text of every shipped module by its path."""
    texts = {}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(package)
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            texts[f"{package}/{path.relative_to(root).as_posix()}"] = path.read_text(encoding="utf-8")
    return texts


def find_faults(texts: Mapping[str, str]) -> list[str]:
    """Return forbidden uses of randomness and unused entries of `ALLOWED`."""
    found = {(path, form) for path, text in texts.items() for form in find_randomness(text)}
    forbidden = [f"{path}: {form} is not allowed" for path, form in sorted(found - set(ALLOWED))]
    unused = [f"{path}: {form} is allowed but not used" for path, form in sorted(set(ALLOWED) - found)]
    return forbidden + unused


def check_sources(texts: Mapping[str, str], _setting: Setting) -> list[Finding]:
    """Check all source files. Return one finding."""
    why = "; ".join(find_faults(texts)[:3])
    claim = f"randomness comes from two modules, with {len(ALLOWED)} justified exceptions"
    return [Finding("sources of randomness", claim, "walk", len(texts), holds=not why, why=why)]


CHECKS: tuple[Check, ...] = (Check("sources of randomness", lambda setting: check_sources(read_sources(), setting)),)
