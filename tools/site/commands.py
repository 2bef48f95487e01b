"""The reference of the command line as a page: every command, argument and option, from the programs themselves."""

import os
import re
import subprocess
import sys
from functools import cache

OF_ITS_OWN = {"demo": "demo.__main__"}  # a program that the command hands everything to, made with typer as well
PLAIN = ("worker", "audit")  # and those that say themselves what they take

_HEADING = re.compile(r"^#+ `sfumato ([a-z -]+)`$", flags=re.MULTILINE)
_LINE = re.compile(r"^\* `([^`]+)`(?:: (.*))?$", flags=re.MULTILINE)
_PLAIN_LINE = re.compile(r"^  (--[^ ]+(?: [A-Z]+)?)\s+(\S.*)$", flags=re.MULTILINE)


def page() -> str:
    """The Markdown."""
    parts = ["# Command line", "What each is for stands in [operations](operations.md#commands)."]
    for name, text in commands().items():
        parts += [f"## sfumato {name} {{ #{name.replace(' ', '-')} }}", text]
    return "\n\n".join(parts) + "\n"


@cache
def commands() -> dict[str, str]:
    """What each command that does something (`keys create`, not `keys`) says of itself, in Markdown."""
    found = _documented("service.cli")
    for name, module in OF_ITS_OWN.items():
        (found[name],) = _documented(module, f"sfumato {name}").values()
    for name in PLAIN:
        found[name] = f"```text\n{_said('service.cli', name, '--help')}\n```"
    return found


def takes(text: str) -> list[tuple[str, str]]:
    """(how it is written, what it does) of each argument and option of a command."""
    return _LINE.findall(text) + _PLAIN_LINE.findall(text)


def _documented(module: str, name: str = "sfumato") -> dict[str, str]:
    """A typer program's own documentation, by command."""
    text = _said("typer", module, "utils", "docs", "--name", name)
    _, *pieces = _HEADING.split("\n" + text) if name == "sfumato" else ("", name, text.partition("\n")[2])
    sections = zip(pieces[::2], pieces[1::2], strict=True)
    return {title: _tidied(body) for title, body in sections if "**Commands**" not in body}


def _tidied(body: str) -> str:
    """Without what every command has."""
    body = re.sub(r"^\* `--(?:help|install-completion|show-completion)`.*\n?", "", body, flags=re.MULTILINE)
    body = re.sub(r"\*\*Options\*\*:\s*(?=\*\*|\Z)", "", body)
    return body.replace("```console\n$ ", "```text\n").strip()


def _said(*command: str) -> str:
    told = subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"},
    ).stdout
    return "\n".join(line.rstrip() for line in told.strip().splitlines())
