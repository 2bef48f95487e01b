"""The READMEs of the SDKs: one order of sections, and installation from a clone as written."""

import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.sdks.conftest import Live, serving
from tests.sdks.packages import ROOT, block_after, run

pytestmark = [pytest.mark.slow, pytest.mark.release]

ORDER = (
    "Install from a clone",
    "A first report",
    "Cap and store",
    "Offline",
    "Errors",
    "Sealed reports",
    "What is tested",
)
DEVICES = ("kotlin", "python", "typescript")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the parts of the repository that an installation needs, as a clone has them."""
    copy = tmp_path_factory.mktemp("home") / "sfumato"
    ignored = shutil.ignore_patterns("node_modules", "dist", "generated", "*.egg-info", "build", "__pycache__")
    for name in ("sdk", "openapi", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy2(ROOT / name, copy)  # with its time, so that make finds the environment up to date
    (copy / ".venv").symlink_to(ROOT / ".venv")
    return copy


def install(clone: Path, language: str) -> Path:
    """Run the commands of a README in the clone. Return the directory of the app."""
    run("sh", "-e", "-c", block_after(clone / "sdk" / language / "README.md", ORDER[0], "sh"), cwd=clone)
    return clone.parent / "my-app"


class TestTheReadmes:
    @pytest.mark.parametrize("language", [*DEVICES, "go", "java", "swift"])
    def test_have_one_order_and_say_that_nothing_is_published(self, language: str) -> None:
        text = (ROOT / "sdk" / language / "README.md").read_text()
        headings = [heading for heading in re.findall("^## (.+)$", text, re.MULTILINE) if heading in ORDER]
        assert headings == [heading for heading in ORDER if heading in headings]
        assert language not in DEVICES or tuple(headings) == ORDER
        assert "**Nothing is published yet" in text
        assert not re.search(r"(pip|npm) install ['\"]?sfumato", text)


class TestInstallation:
    def test_of_the_typescript_package_sends_a_first_report(self, clone: Path, live: Live) -> None:
        (clone.parent / "my-app").mkdir(exist_ok=True)
        (clone.parent / "my-app" / "package.json").write_text('{"name": "my-app", "private": true}')
        app = install(clone, "typescript")
        program = block_after(ROOT / "sdk" / "typescript" / "README.md", ORDER[1], "js")
        (app / "first.mjs").write_text(program)
        assert run("node", "first.mjs", cwd=app, **live.environment) == "sent\n"

    def test_of_the_python_package_sends_a_first_report(self, clone: Path, live: Live) -> None:
        (clone.parent / "my-app").mkdir(exist_ok=True)
        app = install(clone, "python")
        (app / "device.json").unlink(missing_ok=True)
        (app / "first.py").write_text(block_after(ROOT / "sdk" / "python" / "README.md", ORDER[1], "python"))
        assert run(app / ".venv" / "bin" / "python", "first.py", cwd=app, **live.environment) == "sent\n"

    def test_of_the_kotlin_device_installs_its_library(self, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        repository = clone.parent / "maven"
        monkeypatch.setenv("MAVEN_OPTS", f"-Dmaven.repo.local={repository}")
        install(clone, "kotlin")
        (library,) = repository.rglob("sfumato-device-*.jar")
        with zipfile.ZipFile(library) as opened:
            assert {"sfumato/device/Device.class", "sfumato/device/ShuffledDevice.class"} <= set(opened.namelist())

    @pytest.mark.parametrize("language", ["go", "java"])
    def test_of_a_client_for_backends_prints_the_jobs(
        self, clone: Path, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MAVEN_OPTS", f"-Dmaven.repo.local={clone.parent / 'maven'}")
        shutil.rmtree(clone.parent / "my-app", ignore_errors=True)
        app = install(clone, language)
        first = block_after(clone / "sdk" / language / "README.md", ORDER[1], "sh")
        with serving(tmp_path / "home") as api:
            service = {"SFUMATO_URL": str(api.http.base_url), "SFUMATO_KEY": api.secret}
            job_id = api.job(str(api.dataset()["id"]))["id"]
            assert f"{job_id} " in run("sh", "-e", "-c", first, cwd=app, **service)
            refused = run("sh", "-e", "-c", first, cwd=app, **service | {"SFUMATO_KEY": "sfm_wrong"})
            assert refused.startswith("unauthenticated: ")
