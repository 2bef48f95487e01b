"""Generate the Kotlin, Swift and Python clients into build/sdks, and check them.

Run by `make sdks`, in an environment with openapi/generators/requirements.lock. Every warning of a generator or the
compiler is an error, except the known one below.

The Kotlin and Swift generator's support of OpenAPI 3.1 is incomplete, so the document is first converted to 3.0. All
generated files are parsed. Maven compiles the Kotlin client and the Kotlin device, and the device must pass the
conformance kit. `tests/sdks/test_generated_client.py` generates the Python client and calls a service.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openapi_python_client  # type: ignore[import-not-found,unused-ignore]
import tree_sitter  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_kotlin  # type: ignore[import-not-found,unused-ignore]
import tree_sitter_swift  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sdks"
GENERATORS = ROOT / "openapi" / "generators"
DESCRIPTION = ROOT / "openapi" / "openapi.json"
CONVERTER = GENERATORS / "kotlin" / "node_modules" / ".bin" / "openapi-down-convert"
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a compilation of a minute takes less processor time so
DEVICE = ROOT / "sdk" / "kotlin" / "device"

GRAMMARS: dict[str, Callable[[], object]] = {"kotlin": tree_sitter_kotlin.language, "swift": tree_sitter_swift.language}
SUFFIXES = {"kotlin": ".kt", "swift": ".swift"}

# The generator prints this warning once for each response with a union schema, such as `AnyForecast`. It searches for
# the schema by a reference that it has already resolved. The generated code is correct. Names, titles, allOf, another
# OpenAPI version or a disabled normalizer do not avoid the warning.
KNOWN_WARNING = r"ModelUtils - Failed to get the schema name: null"

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


def generate(language: str) -> list[str]:
    """Generate one client. Return the unknown warnings."""
    shutil.rmtree(BUILD / language, ignore_errors=True)
    program = Path(sys.executable).with_name("openapi-generator-cli")
    command = [str(program), "generate", "--config", str(GENERATORS / f"{language}.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"the generator failed for {language}:\n{output[-3000:]}")
    return find_unknown_warnings(output)


def find_unknown_warnings(output: str) -> list[str]:
    """Return the warnings of a generator, except one known warning for each response with a union schema."""
    warnings = [line for line in output.splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]
    known = [line for line in warnings if re.search(KNOWN_WARNING, line)]
    return [line for line in warnings if line not in known] + known[count_union_responses() :]


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


def list_sources(language: str) -> list[Path]:
    """Return the generated source files of a language."""
    return sorted((BUILD / language).rglob(f"*{SUFFIXES[language]}"))


def find_syntax_errors(language: str, paths: list[Path]) -> Iterator[str]:
    """Yield the files with a syntax error."""
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


def build_with_maven(directory: Path, *arguments: str) -> list[str]:
    """Build a Maven module. Return the end of the output if it fails. Each warning of the compiler is an error."""
    command = ["mvn", "--batch-mode", "--no-transfer-progress", *arguments]
    environment = os.environ | {"MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} {SHORT_JVM}"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    _print(f"{directory.relative_to(ROOT)}: mvn {' '.join(arguments)} took {time.monotonic() - began:.0f} s")
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-60:]


def check_conformance() -> list[str]:
    """Run the conformance kit against the Kotlin device. Return the differences."""
    target = DEVICE / "target"
    classes = os.pathsep.join(map(str, (target / "classes", target / "test-classes", target / "lib" / "*")))
    kit = [str(ROOT / ".venv" / "bin" / "sfumato"), "conformance", "--"]
    command = [*kit, "java", "-XX:TieredStopAtLevel=1", "-cp", classes, "sfumato.device.ConformanceKt"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    _print(f"kotlin device: {lines[-1] if lines else 'no output'}")
    return [] if done.returncode == 0 else lines or ["the kit printed nothing"]


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    """Generate and check the clients. Return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-compiler", action="store_true", help="Compile nothing.")
    parser.add_argument("--only-python", type=Path, metavar="DIR", help="Generate the Python client only, into DIR.")
    arguments = parser.parse_args()
    build: Path = arguments.only_python or BUILD
    build.mkdir(parents=True, exist_ok=True)
    problems = generate_python(build)
    _print(f"python: {len(list((build / 'python').rglob('*.py')))} files generated")
    if not arguments.only_python:
        problems += check_kotlin_and_swift(compiler=not arguments.no_compiler)
    _print("\n".join(problems) if problems else "no problems")
    return 1 if problems else 0


def check_kotlin_and_swift(*, compiler: bool) -> list[str]:
    """Generate and check the Kotlin and Swift clients. Return the problems."""
    problems: list[str] = []
    converted = BUILD / "openapi.json"
    subprocess.run([CONVERTER, "--allOf", "--input", DESCRIPTION, "--output", converted], check=True)
    for language in GRAMMARS:
        problems += generate(language)
        problems += find_syntax_errors(language, list_sources(language))
        _print(f"{language}: {len(list_sources(language))} files generated and parsed")
    if compiler:
        shutil.copy(GENERATORS / "kotlin" / "pom.xml", BUILD / "kotlin")
        problems += build_with_maven(DEVICE, "package")
        with ThreadPoolExecutor() as threads:  # after the first build, because two builds cannot fill one repository
            client = threads.submit(build_with_maven, BUILD / "kotlin", "compile")
            problems += check_conformance() if not problems else []
            problems += client.result()
    return problems


if __name__ == "__main__":
    sys.exit(main())
