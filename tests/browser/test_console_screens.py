"""Compare screenshots of every page, light and dark, with those in docs/images/console.

`SFUMATO_TEST_SCREENSHOTS=docs/images/console` replaces the stored screenshots. Ids and times are overwritten before a
screenshot. The comparison uses the mean colour of tiles, so other fonts pass and broken pages fail.
"""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MILLISECONDS
from tests.browser.scenes import Scene, furnish, gateway_alone

pytestmark = pytest.mark.slow

KEPT = Path(__file__).parents[2] / "docs" / "images" / "console"
SIZE = {"width": 1000, "height": 860}
MAX_BYTES = 80_000
TILE = 40  # pixels: about 1.5 lines of text, so that the mean colour hardly depends on the font
# Tolerance of 255 and share of tiles. Another font changed tiles by at most 14; a missing chart changed 3 % by over 30.
TILE_TOLERANCE, TILES = 20, 0.01

PAGES = {
    "sign-in": "/login",
    "overview": "/",
    "dataset": "/datasets/{ds}",
    "rounds": "/datasets/{ds}/rounds",
    "ledger": "/datasets/{ds}/ledger",
    "settings": "/datasets/{ds}/settings",
    "new-dataset": "/datasets/new",
    "records": "/datasets/{clinic}/records",
    "new-round": "/datasets/{lunch}/rounds/new",
    "round": "/rounds/{round}",
    "algorithms": "/datasets/{ds}/jobs/new",
    "new-job": "/datasets/{ds}/jobs/new?type=shifted_grid",
    "jobs": "/jobs",
    "job": "/jobs/{job}",
    "result": "/jobs/{europe}/result",
    "compare": "/compare?of={europe}&of={europe later}",
    "keys": "/keys",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/{webhook}",
    "audit": "/audit",
    "not-found": "/datasets/ds_00000000000000000000000000",
}

# Overwrites values that differ between runs: ids, hashes, times, versions.
SAME = r"""() => {
  const rules = [
    [/\b([a-z]{2,4})_[0-9a-z]{26}\b/g, "$1_00000000000000000000000000"],
    [/\b[0-9a-f]{8,16}\b/g, "00000000"],
    [/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC/g, "2026-01-01 00:00:00 UTC"],
    [/version [0-9.]+/g, "version 1"],
  ];
  const same = (text) => rules.reduce((now, [found, instead]) => now.replace(found, instead), text);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (const time of document.querySelectorAll("time")) {
    delete time.dataset.relative;  // otherwise a later update shows the time again
    time.textContent = "2026-01-01 00:00:00 UTC";
  }
  for (const cell of document.querySelectorAll("[data-duration]")) cell.textContent = "1 s";
  while (walk.nextNode()) walk.currentNode.data = same(walk.currentNode.data);
  for (const input of document.querySelectorAll("input:not([type=file])")) input.value = same(input.value);
}"""

# Spaces the entries of the budget chart evenly before it is drawn: one a day, until now.
EVENLY = """document.addEventListener("DOMContentLoaded", () => {
  Date.now = () => 1767225600000;
  for (const chart of document.querySelectorAll("[data-course]")) {
    const course = JSON.parse(chart.dataset.course);
    course.at = course.at.map((_at, index) => 1767225600 - 86400 * (course.at.length - index));
    chart.dataset.course = JSON.stringify(course);
  }
});"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with gateway_alone(tmp_path_factory.mktemp("screens") / "home") as scene:
        furnish(scene)
        yield scene


def open_page(browser: Browser, scene: Scene, scheme: str) -> Page:
    """Open a page and sign in."""
    context = browser.new_context(base_url=scene.url, viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    context.add_init_script(EVENLY)
    context.route("**/live", lambda route: route.abort())
    page = context.new_page()
    page.goto("/console/")
    page.get_by_label("Key").fill(scene.secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=PATIENCE_MILLISECONDS)
    return page


def visit(page: Page, scene: Scene, name: str) -> None:
    """Open a page and wait until it is complete."""
    if name == "sign-in":
        page.context.clear_cookies()
    page.goto("/console" + PAGES[name].format_map(scene.ids), wait_until="networkidle")
    if name == "new-job":
        page.get_by_label("ε").fill("1")
        page.get_by_label("Devices expected").fill("100000")
        expect(page.locator("#forecast")).to_contain_text("Algorithm", timeout=PATIENCE_MILLISECONDS)
    for canvas in page.locator("canvas[data-map]").all():
        expect(canvas).to_have_attribute("data-milliseconds", re.compile("."), timeout=PATIENCE_MILLISECONDS)
    page.evaluate(SAME)


def picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot(animations="disabled", caret="hide"))).convert("RGB")


def packed(image: Image.Image) -> bytes:
    """Return the screenshot as a PNG with 96 colours, which suffice for text."""
    out = io.BytesIO()
    image.quantize(96, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def differs(one: Image.Image, other: Image.Image) -> str:
    """Return a description of the difference of two screenshots, or an empty text if they match."""
    if one.size != other.size:
        return f"sizes {one.size} and {other.size}"
    tiles = one.width // TILE, one.height // TILE
    means = [
        np.asarray(each.convert("RGB").resize(tiles, Image.Resampling.BOX), dtype=np.float64) for each in (one, other)
    ]
    off = np.abs(means[0] - means[1]).max(axis=2)
    share = float((off > TILE_TOLERANCE).mean())
    return "" if share <= TILES else f"{share:.1%} of it by more than {TILE_TOLERANCE}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestPictures:
    def test_of_every_page_match_the_stored_ones(
        self, browser: Browser, scene: Scene, scheme: str, tmp_path: Path
    ) -> None:
        target = os.environ.get("SFUMATO_TEST_SCREENSHOTS")
        page, found = open_page(browser, scene, scheme), {}
        for name in [*(each for each in PAGES if each != "sign-in"), "sign-in"]:
            visit(page, scene, name)
            taken, kept = picture(page), (Path(target) if target else KEPT) / f"{name}-{scheme}.png"
            if target:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(packed(taken))
            (tmp_path / kept.name).write_bytes(packed(taken))
            assert kept.stat().st_size <= MAX_BYTES
            if difference := differs(taken, Image.open(kept)):
                found[name] = difference
        assert found == {}, f"new pictures are in {tmp_path}"

    @pytest.mark.parametrize(
        ("name", "broken"),
        [
            ("overview", "() => { document.body.textContent = ''; }"),
            ("overview", "() => document.querySelector('link[rel=stylesheet]').remove()"),
            ("dataset", "() => { document.querySelector('.chart').hidden = true; }"),
            ("dataset", "() => { document.querySelector('.chart canvas').style.visibility = 'hidden'; }"),
            ("result", "() => { const it = document.querySelector('canvas'); it.width = it.width; }"),
            ("result", "() => { document.querySelector('figure').hidden = true; }"),
            ("keys", "() => document.querySelector('table').remove()"),
            ("new-job", "() => { document.querySelector('form.card').remove(); }"),
        ],
    )
    def test_of_a_broken_page_differ(self, browser: Browser, scene: Scene, scheme: str, name: str, broken: str) -> None:
        page = open_page(browser, scene, scheme)
        visit(page, scene, name)
        page.evaluate(broken)
        assert differs(picture(page), Image.open(KEPT / f"{name}-{scheme}.png")) != ""


def test_stored_screenshots_match_the_pages() -> None:
    assert {path.name for path in KEPT.iterdir()} == {
        f"{name}-{scheme}.png" for name in PAGES for scheme in ("light", "dark")
    }
