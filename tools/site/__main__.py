"""Build the documentation site in build/site: `python -m tools.site`, run by `make docs`."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sfumato
from service.api.openapi import reference_page
from tools import gallery
from tools.site import check, references, samples, staging

ROOT = staging.ROOT
BUILD = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIGURATION = BUILD.parent / "zensical.toml"  # above both, because zensical reads no files outside its folder
TEMPLATE = Path(__file__).parent / "zensical.toml"

_FOLDER = re.compile(r'"([a-z-]+/)\*"')


def generate_pages() -> dict[str, str]:
    """Return the pages that are generated from the code, by their path on the site."""
    return {
        "api/index.md": render_api_reference(),
        "commands.md": references.commands_page(),
        "settings.md": references.settings_page(),
        "data-model.md": references.data_model_page(),
        "python.md": references.python_page(),
        "gallery.md": gallery.render_page(),
    }


def render_api_reference() -> str:
    """Return the gateway's reference page of the OpenAPI document, without its frame, as a page of the site."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    html = reference_page.page(document, samples.render_samples(document))
    body = html.partition("<body>")[2].rpartition("</body>")[0]
    body = body.replace("'/openapi.json'", "'openapi.json'")
    return f"<div>{body}</div>\n"


class NavigationError(Exception):
    """A page is missing from the navigation or is in it twice, or an entry is not a page."""


def fill_configuration(pages: Sequence[str], text: str = "") -> str:
    """Return the configuration for these pages.

    Raises
    ------
    NavigationError
        The message lists all wrong pages.
    """
    text = text or TEMPLATE.read_text()
    named = set(re.findall(r'"([a-z0-9/_-]+\.md)"', text))

    def list_folder(folder: re.Match[str]) -> str:
        return ", ".join(f'"{page}"' for page in sorted(pages) if page.startswith(folder[1]) and page not in named)

    shaped = _FOLDER.sub(list_folder, text).replace("VERSION", sfumato.__version__)
    shaped = shaped.replace("REPOSITORY", make_repository_link(_read_origin()))
    listed = list(_list_pages(tomllib.loads(shaped)["project"]["nav"]))
    wrong = [f"{page} is not in the navigation" for page in pages if page not in listed]
    wrong += [f"{page} is in the navigation but is not a page" for page in listed if page not in pages]
    wrong += [f"{page} is in the navigation twice" for page in sorted(set(listed)) if listed.count(page) > 1]
    if wrong:
        raise NavigationError("\n".join(wrong))
    return shaped


def make_repository_link(origin: str) -> str:
    """Return a link to the repository with this address of git, or an empty text if it has no page."""
    found = re.fullmatch(
        r"(?:https://(?:[^@/]+@)?|git@|ssh://git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", origin.strip()
    )
    return f"<a href='https://{found[1]}/{found[2]}'>Repository</a> ·" if found else ""


def _read_origin() -> str:
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _list_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _list_pages(each)


def build() -> int:
    """Build the site. Return 1 if a page, a link or the navigation is wrong."""
    try:
        pages = staging.stage(BUILD / "pages", generate_pages())
        CONFIGURATION.write_text(fill_configuration(pages))
    except (staging.BrokenLink, NavigationError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    program = BUILD / ".venv" / "bin" / "zensical"
    if subprocess.run(
        [program, "build", "--strict", "--clean", "--config-file", CONFIGURATION], cwd=BUILD.parent, check=False
    ).returncode:
        return 1
    problems = check.find_problems(SITE)
    sys.stdout.write("\n".join([*problems, f"{len(pages)} pages in {SITE.relative_to(ROOT)}"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(build())
