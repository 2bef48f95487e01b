"""All randomness of what is shipped comes through two seams, and what looks for it misses no form of it."""

from pathlib import Path

import pytest

from audit.randomness import ALLOWED, CHECKS, PACKAGES, faults, found_in, sources

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
    "import ssl\nssl.RAND_bytes(8)": "another library's",
    "from cryptography.fernet import Fernet\nFernet.generate_key()": "another library's",
    "seed = hash('a text')": "hash()",
    "__import__('random')": "random",
    "import importlib\nimportlib.import_module('numpy.random')": "numpy.random",
    "import numpy as np\ngetattr(np, 'random')": "numpy.random",
    "import os\ngetattr(os, 'urandom')": "os.urandom",
    "from clustering.seeded_entropy import SeededEntropy": "SeededEntropy",
    "from clustering.simulate import SeededEntropy as S": "SeededEntropy",
    "from clustering import simulate\nsimulate.SeededEntropy(0)": "SeededEntropy",
    "def f():\n    if True:\n        import random": "random",
}
HARMLESS = (
    "from sfumato.entropy import SystemEntropy\nSystemEntropy().words(3)",
    "from clustering import noise\nnoise.discrete_laplace(scale, 3, entropy)",
    "randomised = 'random'",
    "'''import random'''",
    "from sfumato.mechanisms import design",
    "self.hash(body)",
    "from scipy.stats import norm\nnorm.ppf(0.5)",
)


class TestWhatIsShipped:
    def test_draws_through_the_two_seams_alone(self) -> None:
        assert faults(sources()) == []

    def test_is_all_looked_at(self) -> None:
        roots = {package: ROOT / package for package in PACKAGES} | {"sfumato": ROOT / "sdk" / "python" / "sfumato"}
        expected = {
            f"{package}/{path.relative_to(root).as_posix()}"
            for package, root in roots.items()
            for path in root.rglob("*.py")
        }
        assert set(sources()) == expected
        assert len(expected) > 150

    def test_every_exception_has_a_reason(self) -> None:
        assert all(reason.strip() for reason in ALLOWED.values())
        assert len(ALLOWED) < 25

    def test_no_released_number_may_be_seeded(self) -> None:
        """Seeded words: in simulations, comparators and warm-up, and nowhere in `models` and `service`."""
        seeded = {path for path, form in ALLOWED if form in {"SeededEntropy", "numpy.random"}}
        assert not [path for path in seeded if path.startswith(("models/", "service/", "sfumato/"))]
        assert [path for path in seeded if path.startswith("workers/")] == ["workers/warm.py"]


class TestTheSearch:
    @pytest.mark.parametrize("source", FORMS)
    def test_finds_each_form(self, source: str) -> None:
        assert FORMS[source] in found_in(source)
        planted = faults(sources() | {"models/planted.py": source})
        assert f"models/planted.py: {FORMS[source]} beside the seams" in planted

    @pytest.mark.parametrize("source", HARMLESS)
    def test_finds_nothing_in_what_is_harmless(self, source: str) -> None:
        assert found_in(source) == set()

    def test_an_exception_holds_for_one_file_and_one_form(self) -> None:
        texts = sources()
        both = texts["models/tenant.py"] + "\nimport random\n"
        assert faults(texts | {"models/tenant.py": both}) == ["models/tenant.py: random beside the seams"]
        moved = {"models/db.py": "", "models/dbs.py": texts["models/db.py"]}
        assert faults(texts | moved) == [
            "models/dbs.py: secrets beside the seams",
            "models/db.py: secrets is allowed and not there",
        ]

    def test_the_check_says_the_same(self) -> None:
        (check,) = CHECKS
        (found,) = check.run(None)  # type: ignore[arg-type]
        assert found.holds
        assert found.trials == len(sources())
