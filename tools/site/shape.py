"""The site's shape: zensical.toml with its folders filled in, and every page in its navigation exactly once."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CONFIGURATION = Path(__file__).parent / "zensical.toml"

_FOLDER = re.compile(r'"([a-z]+/)\*"')


class Misshapen(Exception):
    """A page is not in the navigation, is there twice, or is no page."""


def configured(pages: Sequence[str], text: str = "") -> str:
    """The configuration for these pages.

    Raises
    ------
    Misshapen
        With all pages that are not where they should be.
    """
    text = text or CONFIGURATION.read_text()
    named = set(re.findall(r'"([a-z0-9/_-]+\.md)"', text))

    def filled(folder: re.Match[str]) -> str:
        return ", ".join(f'"{page}"' for page in sorted(pages) if page.startswith(folder[1]) and page not in named)

    shaped = _FOLDER.sub(filled, text)
    listed = list(_listed(tomllib.loads(shaped)["project"]["nav"]))
    wrong = [f"{page} is not in the navigation" for page in pages if page not in listed]
    wrong += [f"{page} is in the navigation and is no page" for page in listed if page not in pages]
    wrong += [f"{page} is in the navigation twice" for page in sorted(set(listed)) if listed.count(page) > 1]
    if wrong:
        raise Misshapen("\n".join(wrong))
    return shaped


def _listed(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _listed(each)
