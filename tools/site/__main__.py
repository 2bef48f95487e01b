"""`python -m tools.site`, run by `make docs`: the documentation as a site in build/site."""

import json
import shutil
import subprocess
import sys

from tools.site import api, check, commands, python, settings, shape, staging

ROOT = staging.ROOT
BUILD = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIGURATION = BUILD.parent / "zensical.toml"  # above both: it takes nothing from outside of its folder


def made_pages() -> dict[str, str]:
    """The pages that are made from the code, by their path on the site."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    made = {f"api/{name}": text for name, text in api.pages(document).items()}
    return made | {"commands.md": commands.page(), "settings.md": settings.page(), "python.md": python.page()}


def build() -> int:
    """Build it anew; 1 where something is not as it should be."""
    try:
        pages = staging.stage(BUILD / "pages", made_pages())
        CONFIGURATION.write_text(shape.configured(pages))
    except (staging.BrokenLink, shape.Misshapen) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    program = BUILD / ".venv" / "bin" / "zensical"
    if subprocess.run(
        [program, "build", "--strict", "--clean", "--config-file", CONFIGURATION], cwd=BUILD.parent, check=False
    ).returncode:
        return 1
    complaints = check.complaints(SITE)
    sys.stdout.write("\n".join([*complaints, f"{len(pages)} pages in {SITE.relative_to(ROOT)}"]) + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(build())
