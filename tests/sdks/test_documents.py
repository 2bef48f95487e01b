"""Tests of all TypeScript and JavaScript blocks in the documents: strict compilation, and runs of programs."""

import json
from pathlib import Path

import pytest

from tests.blocks import PAGES, SCRIPTS, Block, blocks_of
from tests.sdks.conftest import Live
from tests.sdks.packages import run
from tests.sdks.test_typescript import installed

pytestmark = pytest.mark.slow

BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language in SCRIPTS and block.is_run]
TYPED = [block for block in BLOCKS if block.language in ("ts", "typescript")]
PLAIN = [block for block in BLOCKS if block not in TYPED]

OPTIONS = {"strict": True, "exactOptionalPropertyTypes": True, "noUncheckedIndexedAccess": True, "noEmit": True}
OPTIONS |= {"module": "NodeNext", "target": "ES2022", "lib": ["ES2022", "DOM"], "types": []}


def named(block: Block) -> str:
    return block.name


class TestTheBlocks:
    def test_are_found(self) -> None:
        assert len(TYPED) >= 3
        assert len(PLAIN) >= 1

    def test_of_types_compile_strictly(self, typescript: Path, typescript_tarball: Path, tmp_path: Path) -> None:
        installed(typescript_tarball, tmp_path)
        files = {f"{block.page.replace('/', '-')}-{block.line}.ts": block.text for block in TYPED}
        for name, text in files.items():
            (tmp_path / name).write_text(f"{text}\nexport {{}};\n")
        (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": [*files]}))
        run(typescript / "node_modules" / ".bin" / "tsc", "--project", ".", cwd=tmp_path)

    @pytest.mark.parametrize("block", PLAIN, ids=named)
    def test_of_programs_run(self, block: Block, typescript_tarball: Path, live: Live, tmp_path: Path) -> None:
        installed(typescript_tarball, tmp_path)
        (tmp_path / "program.mjs").write_text(block.text)
        said = run("node", "program.mjs", cwd=tmp_path, **live.environment).splitlines()
        promised = [line.rpartition(" // ")[2] for line in block.text.splitlines() if " // " in line]
        assert [line for line in promised if line not in said] == []
