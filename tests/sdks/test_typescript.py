"""Tests of the TypeScript package: strict types, no dependencies, vectors, and a running service."""

import json
import re
from pathlib import Path

import pytest

from tests.sdks import packages
from tests.sdks.conftest import Live
from tests.sdks.packages import TYPESCRIPT, run

pytestmark = pytest.mark.slow

MANIFEST = json.loads((TYPESCRIPT / "package.json").read_text())


def passed(said: str) -> int:
    """Return the number of passed Node.js tests. Fail if a test did not pass."""
    counts = {
        name: int(count) for name, count in re.findall(r"^# (pass|fail|cancelled|skipped|todo) (\d+)$", said, re.M)
    }
    assert {counts.pop(name) for name in ("fail", "cancelled", "skipped", "todo")} == {0}, said
    return counts["pass"]


class TestThePackage:
    def test_has_no_dependencies_but_an_optional_one_of_sealed_reports(self) -> None:
        assert not {"dependencies", "optionalDependencies"} & MANIFEST.keys()
        assert set(MANIFEST["peerDependencies"]) == {"@hpke/core"}
        assert MANIFEST["peerDependenciesMeta"] == {"@hpke/core": {"optional": True}}

    def test_lock_file_has_no_registry_address(self) -> None:
        for folder in (TYPESCRIPT, packages.ROOT / "openapi" / "generators" / "typescript"):
            lock = json.loads((folder / "package-lock.json").read_text())
            assert len(lock["packages"]) > 1
            for name, entry in lock["packages"].items():
                assert "resolved" not in entry
                assert name == "" or entry["integrity"].startswith("sha512-")

    def test_imports_only_its_own_modules_and_node(self, typescript: Path) -> None:
        modules = list((typescript / "dist").rglob("*.js"))
        assert len(modules) >= 12
        foreign = {
            (module.name, name)
            for module in modules
            for name in re.findall(r"""(?:from|import\()\s*["']([^"']+)["']""", module.read_text())
            if not name.startswith(("./", "node:"))
        }
        assert foreign == {("sealing.js", "@hpke/core")}

    def test_only_the_file_store_imports_node_modules(self, typescript: Path) -> None:
        modules = {module.name: module.read_text() for module in (typescript / "dist").glob("*.js")}
        assert sorted(name for name, text in modules.items() if re.search(r"""["']node:""", text)) == [
            "lock.js",
            "node.js",
        ]

    def test_contains_only_exported_files_and_the_licence(self, typescript_tarball: Path) -> None:
        names = set(packages.names_in(typescript_tarball))
        entries = [entry for entry in MANIFEST["exports"].values() if isinstance(entry, dict)]
        exported = {"package/" + path[2:] for entry in entries for kind in entry.values() for path in kind.values()}
        assert len(exported) == 4 * len(entries)
        assert exported | {"package/README.md", "package/LICENSE", "package/package.json"} <= names
        assert {name.split("/")[1] for name in names} == set(MANIFEST["files"]) | {"package.json"}

    def test_has_the_licence_of_the_project(self) -> None:
        assert (TYPESCRIPT / "LICENSE").read_text() == (packages.ROOT / "LICENSE").read_text()

    @pytest.mark.parametrize("system", ["modules", "commonjs", "bundler", "old"])
    def test_compiles_strictly_in_an_application(
        self, typescript: Path, typescript_tarball: Path, tmp_path: Path, system: str
    ) -> None:
        """Check that a strict compiler accepts correct use of the published types and reports a mistake."""
        installed(typescript_tarball, tmp_path, "module" if system == "modules" else "commonjs")
        generator = typescript.parents[1] / "openapi" / "generators" / "typescript"  # has an older compiler
        tsc = (generator if system == "old" else typescript) / "node_modules" / ".bin" / "tsc"
        options: dict[str, object] = {"module": "NodeNext"}
        if system == "bundler":
            options = {"module": "ESNext", "moduleResolution": "Bundler"}
        elif system == "old":
            options = {"module": "CommonJS", "moduleResolution": "node10"}
        options |= {
            "strict": True,
            "exactOptionalPropertyTypes": True,
            "noUncheckedIndexedAccess": True,
            "noEmit": True,
        }
        options |= {"target": "ES2022", "lib": ["ES2022", "DOM"], "types": [], "skipLibCheck": False}
        (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["app.ts"]}))
        app = tmp_path / "app.ts"
        app.write_text(APP)
        run(tsc, "--project", ".", cwd=tmp_path)
        app.write_text(APP.replace("shifted_grid", "telepathy"))
        with pytest.raises(AssertionError, match="telepathy"):
            run(tsc, "--project", ".", cwd=tmp_path)


APP = """\
import { Device, IndexedDbStore, type Receipt } from "@sfumato-dp/sdk";
import { ApiProblem, Client, type Job } from "@sfumato-dp/sdk/client";

export async function work(client: Client, device: Device): Promise<Job["state"]> {
  const receipt: Receipt = await device.report([1, 2]);
  console.log(receipt.outcome, new IndexedDbStore());
  const algorithm = { type: "shifted_grid", epsilon: 1, clusters: 3 } as const;
  const job = await client.createJob({ dataset_id: "ds_1", algorithm, target_reports: 1000 });
  for await (const entry of client.listLedgerEntries(job.dataset_id)) console.log(entry.epsilon_nano);
  return (await job.wait()).state;
}
export const isSpent = (error: unknown): boolean => error instanceof ApiProblem && error.problem.granted !== undefined;
"""


def installed(tarball: Path, project: Path, kind: str = "module") -> None:
    """Create an empty project with only the package, installed without a registry."""
    (project / "package.json").write_text(json.dumps({"name": "app", "private": True, "type": kind}))
    run("npm", "install", "--offline", "--no-audit", "--no-fund", tarball, cwd=project)
    assert [path.name for path in (project / "node_modules").iterdir() if path.name[0] != "."] == ["@sfumato-dp"]


class TestOnNode:
    def test_its_tests_pass(self, typescript: Path) -> None:
        assert passed(run("node", "--test", "--test-reporter", "tap", "test/", cwd=typescript)) >= 200

    def test_it_uses_a_running_service(self, typescript: Path, live: Live) -> None:
        said = run("node", "--test", "--test-reporter", "tap", "live/", cwd=typescript, **live.environment)
        assert passed(said) >= 6

    def test_a_first_report_takes_ten_lines(self, typescript_tarball: Path, live: Live, tmp_path: Path) -> None:
        program = packages.block_after(TYPESCRIPT / "README.md", "A first report", "js")
        assert len(program.splitlines()) <= 10
        installed(typescript_tarball, tmp_path)
        (tmp_path / "first.mjs").write_text(program)
        assert run("node", "first.mjs", cwd=tmp_path, **live.environment) == "sent\n"
