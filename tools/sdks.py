"""Makes the Kotlin and Swift clients from the API description into build/sdks, and checks what can be checked here.

Run by `make sdks`, in an environment that holds openapi/generators/requirements.lock. Both are
generated, and parsed in full; Kotlin's models are compiled as well. A warning of the generator's
fails it, unless it is among those explained below.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import tree_sitter  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_kotlin  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_swift  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sdks"
GENERATORS = ROOT / "openapi" / "generators"
COMPILER = GENERATORS / "kotlin" / "node_modules" / "kotlin-compiler" / "lib"
MODELS = BUILD / "kotlin" / "src" / "main" / "kotlin" / "sfumato" / "api" / "models"

GRAMMARS: dict[str, Callable[[], object]] = {"kotlin": tree_sitter_kotlin.language, "swift": tree_sitter_swift.language}
SUFFIXES = {"kotlin": ".kt", "swift": ".swift"}

# What the generator says of every description like ours, with why it changes nothing.
EXPLAINED = (
    r"OpenAPI 3\.1 support is still in beta",  # said of each document of 3.1
    r"Failed to get the schema name: null",  # of unions that no discriminator tells apart, such as one report or many
    r"Progress \(reserved word\)",  # said before the mapping in swift.yaml is looked at, which names it JobProgress
)

# Swift that is right and that the grammar does not know: what is read in its place.
UNKNOWN_TO_GRAMMAR = ((b"() as! T", b"(0) as! T"), (b".init(nilLiteral: ())", b".init(nilLiteral: (0))"))


def generate(language: str) -> list[str]:
    """Write one client anew; the warnings that nobody explained."""
    shutil.rmtree(BUILD / language, ignore_errors=True)
    program = Path(sys.executable).with_name("openapi-generator-cli")
    command = [str(program), "generate", "--config", str(GENERATORS / f"{language}.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"the generator failed for {language}:\n{said[-3000:]}")
    warnings = [line for line in said.splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]
    return [line for line in warnings if not any(re.search(each, line) for each in EXPLAINED)]


def sources(language: str) -> list[Path]:
    """What was generated in the language itself."""
    return sorted((BUILD / language).rglob(f"*{SUFFIXES[language]}"))


def unreadable(language: str, paths: list[Path]) -> Iterator[str]:
    """Where the language's grammar cannot read a file."""
    parser = tree_sitter.Parser(tree_sitter.Language(GRAMMARS[language]()))
    for path in paths:
        text = path.read_bytes()
        for unknown, known in UNKNOWN_TO_GRAMMAR:
            text = text.replace(unknown, known)
        tree = parser.parse(text)
        if tree.root_node.has_error:
            yield f"{path.relative_to(ROOT)}: line {_first_error(tree.root_node)}"


def _first_error(node: tree_sitter.Node) -> int:
    if node.is_error or node.is_missing:
        return int(node.start_point.row) + 1
    return _first_error(next(child for child in node.children if child.has_error or child.is_missing))


def compile_models(models: Path = MODELS) -> list[str]:
    """What Kotlin's compiler says of the models; kotlinx.serialization stands in by its annotations alone."""
    needed = ("kotlin-compiler", "kotlin-stdlib", "kotlin-reflect", "kotlin-script-runtime", "kotlin-daemon")
    jars = [*needed, "kotlinx-coroutines-core-jvm", "annotations-13.0"]
    command = [
        "java",
        "-Xmx1g",
        "-cp",
        os.pathsep.join(str(COMPILER / f"{name}.jar") for name in jars),
        "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
        *("-no-stdlib", "-no-reflect", "-cp", str(COMPILER / "kotlin-stdlib.jar")),
        *("-d", str(BUILD / "kotlin-classes")),
        *map(str, sorted((ROOT / "sdk" / "kotlin" / "check").glob("*.kt"))),
        str(models),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if re.search(r"\b(error|warning):", line)]
    return said if done.returncode == 0 or said else [done.stderr[-2000:]]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    """Make both; 1 where something is not as it should be."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--no-compiler", action="store_true", help="leave Kotlin's compiler out, which takes a while")
    given = asked.parse_args()
    complaints: list[str] = []
    for language in GRAMMARS:
        complaints += generate(language)
        complaints += unreadable(language, sources(language))
        _say(f"{language}: {len(sources(language))} files generated and parsed")
    if not given.no_compiler:
        complaints += compile_models()
        _say(f"kotlin: {len(list(MODELS.glob('*.kt')))} models compiled")
    _say("\n".join(complaints) if complaints else "nothing to complain about")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
