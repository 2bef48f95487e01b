"""Shipped code uses randomness only from allowed modules, and the search for randomness finds every form."""

from pathlib import Path

import pytest

from audit.checks.randomness import ALLOWED, CHECKS, PACKAGES, find_faults, find_randomness, read_sources

ROOT = Path(__file__).parents[1]

FORMS = {
    "import random": "random",
    "from random import randint": "random",
    "import random as r\nr.random()": "random",
    "from random import SystemRandom": "random",
    "import secrets": "secrets",
    "from secrets import token_hex": "secrets",
    "import uuid\nuuid.uuid4()": "uuid",
    "from uuid import uuid4": "uuid",
    "import os\nos.urandom(8)": "os.urandom",
    "from os import urandom as words": "os.urandom",
    "import os\nos.getrandom(8)": "os.urandom",
    "open('/dev/urandom', 'rb')": "os.urandom",
    "import numpy as np\nnp.random.normal()": "numpy.random",
    "import numpy as xp\nxp.random.default_rng(3)": "numpy.random",
    "import numpy.random as nr": "numpy.random",
    "from numpy import random": "numpy.random",
    "from numpy.random import default_rng": "numpy.random",
    "from numpy.random import PCG64": "numpy.random",
    "import numpy as np\nf = np.random.Generator(np.random.Philox(1)).laplace": "numpy.random",
    "@njit\ndef kernel(n):\n    return np.random.laplace(0.0, 1.0, n)": "numpy.random",
    "import dask.array as da\nda.random.normal(size=3)": "numpy.random",
    "from sqlalchemy import func\nfunc.random()": "numpy.random",
    "from scipy.stats import laplace\nlaplace.rvs(size=3)": "scipy",
    "from sklearn.cluster import KMeans\nKMeans(random_state=0)": "scipy",
    "import torch": "torch",
    "from torch.distributions import Laplace": "torch",
    "import jax.random": "jax",
    "import ssl\nssl.RAND_bytes(8)": "third-party randomness",
    "from cryptography.fernet import Fernet\nFernet.generate_key()": "third-party randomness",
    "seed = hash('a text')": "hash()",
    "__import__('random')": "random",
    "import importlib\nimportlib.import_module('numpy.random')": "numpy.random",
    "import numpy as np\ngetattr(np, 'random')": "numpy.random",
    "import os\ngetattr(os, 'urandom')": "os.urandom",
    "from clustering.random import SeededEntropy": "SeededEntropy",
    "from clustering.simulate import SeededEntropy as S": "SeededEntropy",
    "from clustering import simulate\nsimulate.SeededEntropy(0)": "SeededEntropy",
    "def f():\n    if True:\n        import random": "random",
}
HARMLESS = (
    "from sfumato.privacy.entropy import SystemEntropy\nSystemEntropy().words(3)",
    "from clustering.central import noise\nnoise.discrete_laplace(scale, 3, entropy)",
    "randomised = 'random'",
    "'''import random'''",
    "from sfumato.mechanisms import design",
    "self.hash(body)",
    "from scipy.stats import norm\nnorm.ppf(0.5)",
)


class TestShippedCode:
    def test_randomness_comes_only_from_allowed_modules(self) -> None:
        assert find_faults(read_sources()) == []

    def test_every_shipped_file_is_read(self) -> None:
        roots = {package: ROOT / package for package in PACKAGES} | {"sfumato": ROOT / "sdk" / "python" / "sfumato"}
        expected = {
            f"{package}/{path.relative_to(root).as_posix()}"
            for package, root in roots.items()
            for path in root.rglob("*.py")
        }
        assert set(read_sources()) == expected
        assert len(expected) > 150

    def test_every_exception_has_a_reason(self) -> None:
        assert all(reason.strip() for reason in ALLOWED.values())
        assert len(ALLOWED) < 25

    def test_no_released_number_may_be_seeded(self) -> None:
        """Allow seeded words only in simulations, comparisons and warm-up."""
        seeded = {path for path, form in ALLOWED if form in {"SeededEntropy", "numpy.random"}}
        assert not [path for path in seeded if path.startswith(("models/", "service/", "sfumato/"))]
        assert [path for path in seeded if path.startswith("workers/")] == ["workers/kernels/warmup.py"]


class TestSearch:
    @pytest.mark.parametrize("source", FORMS)
    def test_each_form_is_found(self, source: str) -> None:
        assert FORMS[source] in find_randomness(source)
        planted = find_faults(read_sources() | {"models/planted.py": source})
        assert f"models/planted.py: {FORMS[source]} is not allowed" in planted

    @pytest.mark.parametrize("source", HARMLESS)
    def test_harmless_code_has_no_finding(self, source: str) -> None:
        assert find_randomness(source) == set()

    def test_an_exception_allows_one_form_in_one_file(self) -> None:
        texts = read_sources()
        both = texts["models/identity/keys.py"] + "\nimport random\n"
        assert find_faults(texts | {"models/identity/keys.py": both}) == [
            "models/identity/keys.py: random is not allowed"
        ]
        moved = {"models/database/engine.py": "", "models/dbs.py": texts["models/database/engine.py"]}
        assert find_faults(texts | moved) == [
            "models/dbs.py: secrets is not allowed",
            "models/database/engine.py: secrets is allowed but not used",
        ]

    def test_the_check_of_the_audit_agrees(self) -> None:
        (check,) = CHECKS
        (finding,) = check.run(None)  # type: ignore[arg-type]
        assert finding.holds
        assert finding.trials == len(read_sources())
