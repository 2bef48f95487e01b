"""Where randomness comes from: two seams, `sfumato.entropy` and on it `clustering.noise`, and nothing beside them.

Every source file of what is shipped is read as a syntax tree. Whatever can make a number nobody
foresees, or a seeded one, is a finding unless it stands in the list below with its reason; an entry
nobody needs any more is a finding too. It sees imports, attributes, calls that import by a name,
device files and builtins. It does not see randomness that another library draws unasked.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from audit.check import Check, Finding, Setting

PACKAGES = ("sfumato", "clustering", "workers", "models", "service")

ALLOWED: dict[tuple[str, str], str] = {
    ("sfumato/entropy.py", "os.urandom"): "the seam itself",
    ("clustering/seeded_entropy.py", "numpy.random"): "words of simulations",
    ("clustering/simulate.py", "SeededEntropy"): "plays plans over arrays of points that are made up",
    ("clustering/central/run.py", "SeededEntropy"): "plays central algorithms over arrays; the service gives its own",
    ("clustering/reference/clique.py", "SeededEntropy"): "a comparator, in benchmarks",
    ("clustering/reference/fcm.py", "SeededEntropy"): "a comparator, in benchmarks",
    ("clustering/reference/k_cluster.py", "SeededEntropy"): "a comparator, in benchmarks",
    ("clustering/reference/ldp_kmeans.py", "SeededEntropy"): "a comparator, in benchmarks",
    ("clustering/synthetic.py", "numpy.random"): "people who are made up, for forecasts",
    ("clustering/plans/noisy_fcm.py", "numpy.random"): "public start, of the seed in the job's parameters",
    ("clustering/broadcast_centroids.py", "numpy.random"): "public start, of the seed in the job's parameters",
    ("clustering/valleys.py", "numpy.random"): "public projections, of the seed in the job's parameters",
    ("clustering/phase_search.py", "numpy.random"): "public waves and places, of the seed in the job's parameters",
    ("clustering/deconvolution.py", "numpy.random"): "probes of a determinant, after the tally: post-processing",
    ("workers/warm.py", "SeededEntropy"): "warms kernels with points that are made up",
    ("workers/distinct.py", "secrets"): "keys that scatter report ids; nothing of them is released",
    ("models/console_session.py", "secrets"): "tokens of the console's sessions",
    ("models/bulletin.py", "secrets"): "the name of a process on the channel",
    ("models/db.py", "secrets"): "ids of rows, and how long a transaction waits before it is tried again",
    ("models/sealing.py", "secrets"): "keys and nonces of records at rest",
    ("models/tenant.py", "secrets"): "API keys",
    ("models/webhook.py", "secrets"): "secrets that sign webhooks",
    ("service/middleware.py", "secrets"): "the name of a process in request ids",
    ("service/webhooks.py", "secrets"): "when a webhook is tried again",
}

# Modules by what they are called in a finding; whatever lies below them too.
_MODULES = {
    name: name
    for name in ("random", "secrets", "uuid", "numpy.random", "torch", "jax", "tensorflow", "cupy", "Crypto", "nacl")
}
# Names that make random numbers, wherever they are taken from.
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
    **dict.fromkeys(("RAND_bytes", "generate_key"), "another library's"),
    "SeededEntropy": "SeededEntropy",
}
_DEVICES = ("/dev/urandom", "/dev/random")
_BY_NAME = ("__import__", "import_module", "getattr")


@lru_cache(maxsize=1024)
def found_in(source: str) -> frozenset[str]:
    """Every form of randomness in a source text, by the names `ALLOWED` has for them."""
    return frozenset(form for node in ast.walk(ast.parse(source)) for form in _forms(node))


def _forms(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _of_module(alias.name)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from _of_module(node.module or "")
        for alias in node.names:
            yield from _of_module(f"{node.module}.{alias.name}")
            yield from _of_name(alias.name)
    elif isinstance(node, ast.Attribute):
        yield from _of_name(node.attr)
    elif isinstance(node, ast.keyword):
        yield from _of_name(node.arg or "") if node.arg == "random_state" else ()
    elif isinstance(node, ast.Constant) and node.value in _DEVICES:
        yield "os.urandom"
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if called == "hash" and isinstance(node.func, ast.Name):
        yield "hash()"  # of texts, seeded anew in every process
    if called in _BY_NAME:
        for given in node.args:
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield from _of_module(given.value)
                yield from _of_name(given.value)


def _of_module(name: str) -> Iterator[str]:
    for module, form in _MODULES.items():
        if name == module or name.startswith(f"{module}."):
            yield form


def _of_name(name: str) -> Iterator[str]:
    if name in _NAMES:
        yield _NAMES[name]


def sources() -> dict[str, str]:
    """The text of every module of what is shipped, by its path."""
    texts = {}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(package)
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            texts[f"{package}/{path.relative_to(root).as_posix()}"] = path.read_text(encoding="utf-8")
    return texts


def faults(texts: Mapping[str, str]) -> list[str]:
    """What is not allowed, and what is allowed in vain."""
    found = {(path, form) for path, text in texts.items() for form in found_in(text)}
    strays = [f"{path}: {form} beside the seams" for path, form in sorted(found - set(ALLOWED))]
    idle = [f"{path}: {form} is allowed and not there" for path, form in sorted(set(ALLOWED) - found)]
    return strays + idle


def look(texts: Mapping[str, str], _setting: Setting) -> list[Finding]:
    """One finding over all files."""
    why = "; ".join(faults(texts)[:3])
    claim = f"comes through two seams, but for {len(ALLOWED)} uses with a reason"
    return [Finding("randomness", claim, "walk", len(texts), holds=not why, why=why)]


CHECKS: tuple[Check, ...] = (Check("randomness", lambda setting: look(sources(), setting)),)
