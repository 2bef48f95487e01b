"""Makes the Kotlin and Swift clients from the API description into build/sdks, and checks what can be checked here.

Run by `make sdks`, in an environment that holds openapi/generators/requirements.lock. Both are
generated from the description as 3.0.3 says it, and parsed in full; Kotlin's models are compiled,
and so is the device in Kotlin, which is then held to the vectors. A warning of the generator's or
of the compiler's fails it, but for the one explained below.
"""

import argparse
import json
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
sys.path.insert(0, str(ROOT))  # run as a script

from tools.openapi30 import down_converted  # noqa: E402

BUILD = ROOT / "build" / "sdks"
GENERATORS = ROOT / "openapi" / "generators"
DESCRIPTION = ROOT / "openapi" / "openapi.json"
COMPILER = GENERATORS / "kotlin" / "node_modules" / "kotlin-compiler" / "lib"
STDLIB = COMPILER / "kotlin-stdlib.jar"
DEVICE = ROOT / "sdk" / "kotlin" / "device"
MODELS = BUILD / "kotlin" / "src" / "main" / "kotlin" / "sfumato" / "api" / "models"

GRAMMARS: dict[str, Callable[[], object]] = {"kotlin": tree_sitter_kotlin.language, "swift": tree_sitter_swift.language}
SUFFIXES = {"kotlin": ".kt", "swift": ".swift"}

# Said once of each language, of the first answer that is one of several (`AnyForecast`): the generator looks for the
# name of its schema by a reference that it has resolved itself by then. Named, titled, within an allOf, without a
# discriminator, in 3.1 and in 3.0, without its normalizer: it is said all the same, and what is written is right.
EXPLAINED = r"ModelUtils - Failed to get the schema name: null"
N_EXPLAINED = 1

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
    return unexplained(said)


def unexplained(said: str) -> list[str]:
    """The warnings of a generator that nobody explained, and those that are said more often than was explained."""
    warnings = [line for line in said.splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]
    known = [line for line in warnings if re.search(EXPLAINED, line)]
    return [line for line in warnings if line not in known] + known[N_EXPLAINED:]


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
    stand_ins = sorted((ROOT / "sdk" / "kotlin" / "check").glob("*.kt"))
    return _compiled("kotlin-classes", [*stand_ins, models], [])


def compile_device() -> list[str]:
    """What the compiler says of the device, its public names marked as such, and of what holds it to the vectors."""
    complaints = _compiled("kotlin-device", [DEVICE / "src"], ["-Xexplicit-api=strict"])
    insight = f"-Xfriend-paths={BUILD / 'kotlin-device'}"  # the check sees what the device keeps to itself
    return complaints or _compiled("kotlin-check", [DEVICE / "check"], [insight], BUILD / "kotlin-device")


def _compiled(name: str, paths: list[Path], options: list[str], *classes: Path) -> list[str]:
    """Compile into build/sdks, without any library but Kotlin's own; errors and warnings."""
    shutil.rmtree(BUILD / name, ignore_errors=True)
    needed = ("kotlin-compiler", "kotlin-stdlib", "kotlin-reflect", "kotlin-script-runtime", "kotlin-daemon")
    jars = [*needed, "kotlinx-coroutines-core-jvm", "annotations-13.0"]
    command = [
        "java",
        "-Xmx1g",
        "-cp",
        os.pathsep.join(str(COMPILER / f"{name}.jar") for name in jars),
        "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
        *("-no-stdlib", "-no-reflect", *options),
        *("-cp", os.pathsep.join(map(str, (STDLIB, *classes)))),
        *("-d", str(BUILD / name)),
        *map(str, paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if re.search(r"\b(error|warning):", line)]
    return said if done.returncode == 0 or said else [done.stderr[-2000:]]


def run_vectors() -> list[str]:
    """What of the published vectors the device in Kotlin does otherwise, on this machine's JVM."""
    classes = os.pathsep.join(map(str, (STDLIB, BUILD / "kotlin-device", BUILD / "kotlin-check")))
    command = ["java", "-cp", classes, "sfumato.device.VectorsKt", str(ROOT / "openapi" / "vectors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    _say(f"kotlin device: {lines[-1] if lines else 'said nothing'}")
    return [] if done.returncode == 0 else lines or ["the device said nothing"]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    """Make both; 1 where something is not as it should be."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--no-compiler", action="store_true", help="leave Kotlin's compiler out, which takes a while")
    given = asked.parse_args()
    complaints: list[str] = []
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "openapi.json").write_text(
        json.dumps(down_converted(json.loads(DESCRIPTION.read_text())), indent=1) + "\n"
    )
    for language in GRAMMARS:
        complaints += generate(language)
        complaints += unreadable(language, sources(language))
        _say(f"{language}: {len(sources(language))} files generated and parsed")
    if not given.no_compiler:
        complaints += compile_models()
        _say(f"kotlin: {len(list(MODELS.glob('*.kt')))} models compiled")
        wrong = compile_device()
        complaints += wrong or run_vectors()
    _say("\n".join(complaints) if complaints else "nothing to complain about")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
