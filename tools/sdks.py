"""Generate the clients of the HTTP API into build/sdks, and check them.

Run by `make sdks`, in an environment with openapi/generators/requirements.lock. Every warning of a generator or the
compiler is an error, except the known ones below.

All Kotlin and Swift files are parsed. Maven compiles and tests the Kotlin device, and the device must pass the
conformance kit. `--only kotlin java go` generates these clients and compiles them. The tests in `tests/sdks` do so for
Python, Kotlin, Java and Go, and call a service with the clients.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openapi_python_client  # type: ignore[import-not-found,unused-ignore]
import tree_sitter  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_kotlin  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_swift  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sdks"
GENERATORS = ROOT / "openapi" / "generators"
DESCRIPTION = ROOT / "openapi" / "openapi.json"
# A program that runs for a minute takes less processor time without the second compiler of the JVM.
SHORT_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
DEVICE = ROOT / "sdk" / "kotlin" / "device"

GRAMMARS: dict[str, Callable[[], object]] = {"kotlin": tree_sitter_kotlin.language, "swift": tree_sitter_swift.language}
SUFFIXES = {"kotlin": ".kt", "swift": ".swift", "java": ".java"}
DEFAULT_LANGUAGES = ("python", "kotlin", "swift")
LANGUAGES = (*DEFAULT_LANGUAGES, "java", "go")

# The generator prints this warning once for each response with a union schema, such as `AnyForecast`. It searches for
# the schema by a reference that it has already resolved. The generated code is correct. Names, titles, allOf, another
# OpenAPI version or a disabled normalizer do not avoid the warning.
UNION_WARNING = r"ModelUtils - Failed to get the schema name: null"

# The first one is general. The others concern the examples and an unused name.
KNOWN_WARNINGS = (
    r"DefaultCodegen - OpenAPI 3\.1 support is still in beta",
    r"AbstractJavaCodegen - Ignoring complex example on request body",
    r"AbstractJavaCodegen - Object \(reserved word\) cannot be used as model name",
)

# (part of the template of an operation, replacement). If a body has several media types, the template uses a name
# without importing it, and sends each file with the last media type.
TEMPLATE_CHANGES = (
    ("import Response, UNSET", "import Response, UNSET, Unset"),
    (
        '        headers["Content-Type"] = "{{ body',
        '        headers["Content-Type"] = getattr(body, "mime_type", None) or "{{ body',
    ),
)

# (valid Swift that the grammar does not know, replacement for the parser)
UNKNOWN_TO_GRAMMAR = ((b"() as! T", b"(0) as! T"), (b".init(nilLiteral: ())", b".init(nilLiteral: (0))"))


def generate(language: str, build: Path) -> list[str]:
    """Generate one client with OpenAPI Generator. Return the unknown warnings."""
    shutil.rmtree(build / language, ignore_errors=True)
    program = Path(sys.executable).with_name("openapi-generator-cli")
    command = [str(program), "generate", "--config", str(GENERATORS / f"{language}.yaml")]
    command += ["--input-spec", str(DESCRIPTION), "--output", str(build / language)]
    environment = os.environ | SHORT_JVM
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"the generator failed for {language}:\n{output[-3000:]}")
    return find_unknown_warnings(output)


def find_unknown_warnings(output: str) -> list[str]:
    """Return the warnings of a generator, except the known ones. Each union of a response may cause one.

    A generator may print the others twice.
    """
    warnings = [line for line in output.splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]
    warnings = [line for line in warnings if not any(re.search(each, line) for each in KNOWN_WARNINGS)]
    for line in [line for line in warnings if re.search(UNION_WARNING, line)][: count_union_responses()]:
        warnings.remove(line)
    return warnings


def count_union_responses() -> int:
    """Count the responses of the document that have a union as their schema."""
    document = json.loads(DESCRIPTION.read_text(encoding="utf-8"))
    unions = {
        f"#/components/schemas/{name}"
        for name, schema in document["components"]["schemas"].items()
        if "oneOf" in schema
    }
    operations = [each for path in document["paths"].values() for each in path.values() if "responses" in each]
    responses = [response for operation in operations for response in operation["responses"].values()]
    media = [each for response in responses for each in response.get("content", {}).values()]
    return sum(each.get("schema", {}).get("$ref") in unions for each in media)


def generate_python(build: Path) -> list[str]:
    """Generate the Python client into `build`. Return the output if there is a warning.

    The generator drops what it cannot parse.
    """
    name = "endpoint_module.py.jinja"
    template = (Path(openapi_python_client.__file__).parent / "templates" / name).read_text()
    for old, new in TEMPLATE_CHANGES:
        if template.count(old) != 1:
            sys.exit(f"the template of the generator changed: {old}")
        template = template.replace(old, new)
    templates = build / "python-templates"
    templates.mkdir(parents=True, exist_ok=True)
    (templates / name).write_text(template)
    program = Path(sys.executable).with_name("openapi-python-client")
    command = [str(program), "generate", "--fail-on-warning", "--overwrite", "--meta", "setup"]
    command += ["--path", str(DESCRIPTION), "--config", str(GENERATORS / "python.yaml")]
    command += ["--custom-template-path", str(templates), "--output-path", str(build / "python")]
    shutil.rmtree(build / "python", ignore_errors=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 and "WARNING" not in done.stdout else [done.stdout + done.stderr]


def generate_go(build: Path) -> list[str]:
    """Generate and compile the Go client. Return the output of a command that fails."""
    shutil.rmtree(build / "go", ignore_errors=True)
    shutil.copytree(GENERATORS / "go" / "client", build / "go")
    generator = ["go", "tool", "oapi-codegen", "-config", "config.yaml"]
    generator += ["-o", str(build / "go" / "client.go"), str(DESCRIPTION)]
    for command, directory in ((generator, GENERATORS / "go"), (["go", "vet", "./..."], build / "go")):
        began = time.monotonic()
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        _print(f"go: {' '.join(command[:3])} took {time.monotonic() - began:.0f} s")
        if done.returncode != 0 or "WARN" in done.stdout + done.stderr:
            return [done.stdout + done.stderr]
    return []


def list_sources(language: str, build: Path) -> list[Path]:
    """Return the generated source files of a language."""
    return sorted((build / language).rglob(f"*{SUFFIXES[language]}"))


def find_syntax_errors(language: str, paths: list[Path]) -> Iterator[str]:
    """Yield the files with a syntax error."""
    parser = tree_sitter.Parser(tree_sitter.Language(GRAMMARS[language]()))
    for path in paths:
        text = path.read_bytes()
        for unknown, known in UNKNOWN_TO_GRAMMAR:
            text = text.replace(unknown, known)
        tree = parser.parse(text)
        if tree.root_node.has_error:
            yield f"{path}: line {_first_error(tree.root_node)}"


def _first_error(node: tree_sitter.Node) -> int:
    if node.is_error or node.is_missing:
        return int(node.start_point.row) + 1
    return _first_error(next(child for child in node.children if child.has_error or child.is_missing))


def build_with_maven(directory: Path, *arguments: str) -> list[str]:
    """Build a Maven module. Return the end of the output if it fails. Each warning of the compiler is an error."""
    command = ["mvn", "--batch-mode", "--no-transfer-progress", *arguments]
    environment = os.environ | SHORT_JVM
    began = time.monotonic()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    _print(f"{directory.parent.name}/{directory.name}: mvn {' '.join(arguments)} took {time.monotonic() - began:.0f} s")
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-60:]


def check_conformance() -> list[str]:
    """Run the conformance kit against the Kotlin device. Return the differences."""
    target = DEVICE / "target"
    classes = os.pathsep.join(map(str, (target / "classes", target / "test-classes", target / "lib" / "*")))
    kit = [str(ROOT / ".venv" / "bin" / "sfumato"), "conformance", "--"]
    command = [*kit, "java", "-cp", classes, "sfumato.device.ConformanceKt"]
    environment = os.environ | SHORT_JVM
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = (done.stderr + done.stdout).splitlines()
    _print(f"kotlin device: {lines[-1] if lines else 'no output'}")
    return [] if done.returncode == 0 else lines or ["the kit printed nothing"]


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    """Generate and check the clients. Return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    help_of_only = "Generate and compile these clients only, and no device."
    parser.add_argument("--only", nargs="+", choices=LANGUAGES, help=help_of_only)
    parser.add_argument("--into", type=Path, default=BUILD, metavar="DIR", help="Directory of the clients.")
    arguments = parser.parse_args()
    build: Path = arguments.into.absolute()
    build.mkdir(parents=True, exist_ok=True)
    languages = arguments.only or DEFAULT_LANGUAGES
    problems: list[str] = []
    if "python" in languages:
        problems += generate_python(build)
        _print(f"python: {len(list((build / 'python').rglob('*.py')))} files generated")
    for language in [each for each in SUFFIXES if each in languages]:
        problems += generate(language, build)
        sources = list_sources(language, build)
        if language in GRAMMARS:
            problems += find_syntax_errors(language, sources)
        _print(f"{language}: {len(sources)} files generated")
    if "go" in languages:
        problems += generate_go(build)
    if arguments.only:
        problems += compile_clients([each for each in ("kotlin", "java") if each in languages], build)
    else:
        problems += build_with_maven(DEVICE, "package")
        problems += [] if problems else check_conformance()
    _print("\n".join(problems) if problems else "no problems")
    return 1 if problems else 0


def compile_clients(languages: list[str], build: Path) -> list[str]:
    """Compile clients with Maven. Return the problems."""
    problems: list[str] = []
    for language in languages:
        shutil.copy(GENERATORS / language / "pom.xml", build / language)
        problems += build_with_maven(build / language, "compile")
    return problems


if __name__ == "__main__":
    sys.exit(main())
