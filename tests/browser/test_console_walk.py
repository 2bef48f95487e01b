"""Tests of all pages and forms of the console in Chromium, including a job from its form to its plot."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import CDPSession, Page, expect

from sfumato import Feature
from sfumato.device.bulk import perturb_records
from tests.browser.conftest import PATIENCE_MILLISECONDS, Served, Watched

pytestmark = pytest.mark.slow

MAX_WEIGHT_BYTES = 250_000
PAINT_MILLISECONDS = 5_000  # ten times the documented value, because the test machine may be busy
N_DEVICES = 3000
# Waits for the entry, because the network can be idle before the first paint.
FIRST_CONTENTFUL_PAINT = """new Promise(resolve => new PerformanceObserver(list => {
    for (const entry of list.getEntriesByName('first-contentful-paint')) resolve(entry.startTime)
}).observe({type: 'paint', buffered: true}))"""
SLOWNESS = 6  # factor for scripts and layout, as on a cheap phone
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
FEATURES = [Feature("longitude", -10.0, 30.0, "degrees"), Feature("latitude", 35.0, 60.0, "degrees")]

expect.set_options(timeout=PATIENCE_MILLISECONDS)

Open = Callable[..., Watched]


def sign_in(page: Page, secret: str) -> Page:
    """Sign in and return the page."""
    page.goto("/console/")
    page.get_by_label("Key").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    return page


def check_accessible(page: Page, axe: str) -> None:
    """Check that axe finds no violation."""
    page.evaluate(axe)  # evaluated by the debugger, because the content security policy forbids foreign scripts
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    violations = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found["violations"]]
    assert violations == [], page.url


# Returns texts that are clipped, or that lie on top of another text. Text that is hidden or scrolled away is skipped.
BOXES = r"""() => {
  const found = [];
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, parent = node.parentElement;
    const words = node.data.trim().slice(0, 40);
    if (words === "" || parent.closest("svg, script, style, noscript, option, .skip, .hidden, canvas")) continue;
    let hides = false;
    for (let each = parent; each; each = each.parentElement) hides ||= getComputedStyle(each).clipPath !== "none";
    if (hides || !parent.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width > 1 && box.height > 1) texts.push({box, parent, words});
    }
    const style = getComputedStyle(parent);
    const scrolls = parent.closest(".scroll, pre, textarea, .chart") !== null || style.overflowX === "visible";
    if (!scrolls && parent.scrollWidth > parent.clientWidth + 1) found.push(`clipped: ${words}`);
  }
  texts.sort((one, other) => one.box.top - other.box.top);
  for (let i = 0; i < texts.length; i += 1) {
    for (let j = i + 1; j < texts.length && texts[j].box.top < texts[i].box.bottom; j += 1) {
      const [one, other] = [texts[i].box, texts[j].box];
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      const isAway = [texts[i], texts[j]].some((each) => {
        const area = each.parent.closest(".scroll, pre")?.getBoundingClientRect();
        if (area === undefined) return false;
        const isLeftOrRight = each.box.left > area.right || each.box.right < area.left;
        return isLeftOrRight || each.box.top > area.bottom || each.box.bottom < area.top;
      });
      if (across > 2 && down > 4 && !isAway) found.push(`overlap: ${texts[i].words} / ${texts[j].words}`);
    }
  }
  return found;
}"""


def check_width(page: Page) -> None:
    """Check that the page is not wider than the screen."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, page.url


def check_boxes(page: Page) -> None:
    """Check that no text is clipped or lies on top of another."""
    assert page.evaluate(BOXES) == [], page.url


def people(n: int) -> Any:
    """Return random positions around two towns."""
    chance = np.random.default_rng(1)
    towns = np.array([[2.0, 48.0], [21.0, 52.0]])[chance.integers(0, 2, n)]
    return towns + chance.normal(0, 1.5, (n, 2))


def answer(served: Served, round_id: str, n: int = N_DEVICES) -> None:
    served.client.send_reports(round_id, *perturb_records(served.client.get_round(round_id).spec, people(n)))


def new_job(page: Page, dataset_id: str, tag: str, fields: dict[str, str]) -> str:
    """Create a job with the forms. Return its id."""
    page.goto(f"/console/datasets/{dataset_id}")
    page.get_by_role("link", name="New job").click()
    page.get_by_role("link", name=tag, exact=True).click()
    for label, value in fields.items():
        page.get_by_label(label).fill(value)
    expect(page.locator("#forecast")).to_contain_text("Algorithm")  # updates without a click
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_text("This job spends at most").first).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/console/jobs/job_"))
    return page.url.rpartition("/")[2]


@pytest.fixture(scope="module")
def dataset_id(served: Served) -> str:
    """Return the id of a local dataset with a large budget."""
    return served.client.create_dataset("commuters of two towns", FEATURES, epsilon=24, min_reports=100).id


@pytest.fixture(scope="module")
def finished(served: Served, dataset_id: str) -> str:
    """Return the id of a job with a result."""
    from sfumato.specs import UniformGrid

    job = served.client.submit_job(dataset_id, UniformGrid(2.0, clusters=2, cells=16), target_reports=N_DEVICES)
    while (open_round := served.client.get_job(job.id).progress.open_round_id) is None:
        pass
    answer(served, open_round)
    ended = served.client.wait_for_job(job.id, timeout_seconds=240)
    assert (ended.state, ended.error) == ("succeeded", None)
    return str(job.id)


class TestAWalk:
    def test_requires_a_key(self, served: Served, opened: Open, axe: str) -> None:
        watched = opened()
        page = watched.page
        page.goto("/console")
        check_accessible(page, axe)
        page.get_by_label("Key").fill("sfk_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert len(watched.errors) == 1, watched.errors  # the browser logs the 401
        assert "401" in watched.errors.pop()
        check_accessible(page, axe)
        page.get_by_label("Key").fill(served.secret)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
        assert served.secret not in page.content()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.goto("/console/jobs")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    def test_runs_a_job_from_the_form_to_the_plot(
        self, served: Served, opened: Open, axe: str, dataset_id: str
    ) -> None:
        page = sign_in(opened().page, served.secret)
        page.get_by_role("link", name="commuters of two towns").click()
        expect(page.locator(".chart canvas")).to_be_visible()
        check_accessible(page, axe)
        job_id = new_job(page, dataset_id, "uniform_grid", {"ε": "1", "Devices expected": str(N_DEVICES)})
        expect(page.locator("#live")).to_contain_text("collecting")  # live
        expect(page.locator("#entries").get_by_role("row")).to_have_count(
            3
        )  # header, reservation and charge of the round
        check_accessible(page, axe)
        page.get_by_role("link", name="Round 0").first.click()
        expect(page.locator("#live")).to_contain_text("0 of 3,000 reports")
        check_accessible(page, axe)
        answer(served, page.url.rpartition("/")[2])
        expect(page.locator("#live")).to_contain_text("tallied")  # live
        page.goto(f"/console/jobs/{job_id}")
        page.get_by_role("link", name="View result").click()
        drawn = page.locator("canvas[data-map]")
        expect(drawn).to_have_attribute("data-milliseconds", re.compile("."))
        check_accessible(page, axe)
        for link, suffix in (("SVG", ".svg"), ("PNG", ".png"), ("JSON", ".json"), ("CSV of the clusters", ".csv")):
            with page.expect_download() as kept:
                page.get_by_role("link", name=link, exact=True).click()
            assert kept.value.suggested_filename.endswith(suffix)
            assert Path(kept.value.path()).stat().st_size > 50

    def test_grants_verifies_and_exports(self, served: Served, opened: Open, axe: str) -> None:
        created = served.client.create_dataset("small", FEATURES, epsilon=1)
        page = sign_in(opened().page, served.secret)
        expect(page.get_by_role("heading", name="small")).to_be_visible()
        page.goto(f"/console/datasets/{created.id}")
        page.get_by_text("Grant more").click()
        page.get_by_label("ε", exact=True).fill("1.5")
        page.get_by_role("button", name="Grant", exact=True).click()
        expect(page.get_by_text("ε 2.5").first).to_be_visible()
        page.get_by_role("link", name="Ledger").click()
        page.get_by_role("button", name="Verify").click()
        expect(page.get_by_role("status")).to_contain_text("Verified: 2 entries")
        check_accessible(page, axe)
        with page.expect_download() as kept:
            page.get_by_role("link", name="All entries as CSV").click()
        assert len(Path(kept.value.path()).read_text().splitlines()) == 3
        page.get_by_label("Kind").select_option("charge")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(0)

    def test_shows_errors_next_to_the_field(self, served: Served, opened: Open, axe: str, dataset_id: str) -> None:
        watched = opened()
        page = sign_in(watched.page, served.secret)
        page.goto(f"/console/datasets/{dataset_id}/jobs/new?type=shifted_grid")
        page.get_by_label("ε").fill("0.5")
        page.get_by_label("Devices expected").fill("10000")
        page.get_by_label("clusters").fill("0")
        expect(page.locator("#forecast .wrong")).to_be_visible()  # live
        page.get_by_role("button", name="Review").click()
        expect(page.locator("#f-clusters-wrong")).to_contain_text("greater than or equal to 1")
        check_accessible(page, axe)
        assert len(watched.errors) == 1, watched.errors
        assert "422" in watched.errors.pop()

    def test_runs_a_job_over_records(self, served: Served, opened: Open, axe: str) -> None:
        created = served.client.create_dataset("curated", FEATURES, epsilon=4, trust="central")
        served.client.upload_records(created.id, people(2000))
        page = sign_in(opened().page, served.secret)
        fields = {"ε": "1", "clusters": "2", "Expected number of records": "2000"}
        new_job(page, created.id, "private_kmeans", fields)
        page.get_by_role("link", name="View result").click()  # live
        expect(page.get_by_role("heading", name="Queries", exact=True)).to_be_visible()
        assert "2,000" not in page.content()
        check_accessible(page, axe)

    def test_cancels_a_job_and_closes_a_round(self, served: Served, opened: Open, dataset_id: str) -> None:
        page = sign_in(opened().page, served.secret)
        new_job(page, dataset_id, "uniform_grid", {"ε": "1", "Devices expected": "5000"})
        page.get_by_role("link", name="Round 0").first.click()
        page.get_by_role("button", name="Close round").click()
        expect(page.locator("#live")).not_to_contain_text("Close round")
        new_job(page, dataset_id, "uniform_grid", {"ε": "1", "Devices expected": "5000"})
        page.get_by_role("button", name="Cancel job").click()
        expect(page.locator("#live")).to_contain_text("canceled")

    def test_creates_and_deletes_keys_and_webhooks(self, served: Served, opened: Open, axe: str) -> None:
        page = sign_in(opened().page, served.secret)
        page.get_by_role("link", name="Keys").click()
        page.get_by_label("Name").fill("tablet")
        page.get_by_label("device").check()
        page.get_by_role("button", name="Create key").click()
        expect(page.locator(".secret")).to_contain_text("sfk_")
        check_accessible(page, axe)
        page.get_by_role("button", name="Rotate tablet").click()
        expect(page.locator(".secret")).to_contain_text("sfk_")
        page.get_by_role("button", name="Revoke tablet").first.click()
        expect(page.get_by_text("revoked").first).to_be_visible()
        page.get_by_role("link", name="Webhooks").click()
        page.get_by_label("URL").fill("https://hooks.example.com/sfumato")
        page.get_by_label("job.failed").check()
        page.get_by_role("button", name="Create webhook").click()
        expect(page.locator(".secret")).to_contain_text("whsec_")
        check_accessible(page, axe)
        page.get_by_role("link", name="https://hooks.example.com/sfumato").click()
        page.get_by_role("button", name="Disable").click()
        page.get_by_role("button", name="Enable").click()
        expect(page.get_by_role("button", name="Disable")).to_be_visible()
        check_accessible(page, axe)
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("No webhooks yet.")).to_be_visible()
        page.get_by_role("link", name="Audit trail").click()
        expect(page.locator("td").get_by_text("key.rotated").first).to_be_visible()
        check_accessible(page, axe)


def slowed(page: Page, times: int) -> CDPSession:
    """Slow down scripts and layout of a page by a factor."""
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": times})
    return session


class TestWithLess:
    @pytest.mark.release
    def test_works_with_slow_scripts(self, served: Served, opened: Open, dataset_id: str) -> None:
        page = opened().page
        session = slowed(page, SLOWNESS)
        sign_in(page, served.secret)
        expect(page.get_by_role("heading", name="commuters of two towns")).to_be_visible()
        job_id = new_job(page, dataset_id, "uniform_grid", {"ε": "1", "Devices expected": str(N_DEVICES)})
        expect(page.locator("#live")).to_contain_text("collecting")
        expect(page.locator("#entries")).to_contain_text("round 0")
        href = page.get_by_role("link", name="Round 0").first.get_attribute("href")
        answer(served, str(href).rpartition("/")[2])
        page.get_by_role("link", name="View result").click()  # appears without a reload
        expect(page.locator("canvas[data-map]")).to_have_attribute("data-milliseconds", re.compile("."))
        assert job_id in page.url
        session.detach()

    def test_polls_if_the_event_stream_fails(self, served: Served, opened: Open, dataset_id: str) -> None:
        watched = opened()
        page = watched.page
        page.route("**/events", lambda route: route.abort())
        sign_in(page, served.secret)
        new_job(page, dataset_id, "uniform_grid", {"ε": "1", "Devices expected": str(N_DEVICES)})
        expect(page.locator("#live")).to_contain_text("collecting")
        href = page.get_by_role("link", name="Round 0").first.get_attribute("href")
        answer(served, str(href).rpartition("/")[2])
        expect(page.get_by_role("link", name="View result")).to_be_visible()
        page.goto("/console/jobs")  # stops polling
        watched.errors[:] = [
            error for error in watched.errors if "ERR_FAILED" not in error
        ]  # errors of the blocked stream

    def test_submits_a_job_without_scripts(self, served: Served, opened: Open, dataset_id: str) -> None:
        page = sign_in(opened(java_script_enabled=False).page, served.secret)
        page.goto(f"/console/datasets/{dataset_id}/jobs/new?type=uniform_grid")
        page.get_by_label("ε").fill("0.5")
        page.get_by_label("Devices expected").fill("5000")
        page.get_by_role("button", name="Forecast").click()
        expect(page.get_by_text("Algorithm", exact=True)).to_be_visible()
        page.get_by_role("button", name="Review").click()
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("heading", name="Uniform grid, ε 0.5")).to_be_visible()
        page.get_by_role("button", name="Cancel job").click()

    def test_a_revoked_key_leads_to_the_sign_in_page(self, served: Served, opened: Open, dataset_id: str) -> None:
        created = served.client.create_key("short", ["admin"])
        watched = opened()
        page = watched.page
        sign_in(page, str(created.secret))
        job_id = new_job(page, dataset_id, "uniform_grid", {"ε": "0.5", "Devices expected": "5000"})
        served.client.revoke_key(created.id)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()  # without a reload
        served.client.cancel_job(job_id)
        watched.errors[:] = [error for error in watched.errors if "401" not in error]

    @pytest.mark.parametrize(
        ("scheme", "screen"),
        [("dark", PHONE), *(pytest.param("light", each, marks=pytest.mark.release) for each in (PHONE, DESK))],
    )
    def test_every_page_fits_the_screen(
        self,
        served: Served,
        opened: Open,
        axe: str,
        dataset_id: str,
        finished: str,
        scheme: str,
        screen: dict[str, int],
    ) -> None:
        page = sign_in(opened(viewport=screen, color_scheme=scheme, is_mobile=screen == PHONE).page, served.secret)
        (used,) = served.client.result(finished).rounds
        for path in (
            "/", f"/datasets/{dataset_id}", f"/datasets/{dataset_id}/jobs/new", "/jobs", f"/jobs/{finished}",
            f"/datasets/{dataset_id}/jobs/new?type=shifted_grid", f"/jobs/{finished}/result", f"/rounds/{used.id}",
            "/keys", "/webhooks", "/audit", "/glossary", "/datasets/new", f"/datasets/{dataset_id}/rounds",
            f"/datasets/{dataset_id}/ledger",
            f"/datasets/{dataset_id}/settings", f"/jobs?dataset_id={dataset_id}", f"/keys?dataset_id={dataset_id}",
            f"/compare?of={finished}&of={finished}&of={finished}",
        ):  # fmt: skip
            page.goto(f"/console{path}")
            check_width(page)
            check_boxes(page)
            check_accessible(page, axe)
        page.evaluate("document.querySelector('h1').style.marginBottom = '-2rem'")
        assert "overlap" in page.evaluate(BOXES)[0]
        page.reload()
        page.evaluate("document.querySelector('h1').style.cssText = 'overflow: hidden; width: 1rem'")
        assert "clipped" in page.evaluate(BOXES)[0]

    def test_works_with_the_keyboard(self, served: Served, opened: Open) -> None:
        page = sign_in(opened().page, served.secret)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.get_by_role("button", name="Sign out").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


class TestFigures:
    @pytest.mark.release
    def test_pages_are_small_and_fast(
        self, served: Served, opened: Open, dataset_id: str, finished: str, record_property: Callable[..., None]
    ) -> None:
        page = sign_in(opened().page, served.secret)
        (used,) = served.client.result(finished).rounds
        for name, path in {
            "overview": "/",
            "dataset": f"/datasets/{dataset_id}",
            "ledger": f"/datasets/{dataset_id}/ledger",
            "algorithms": f"/datasets/{dataset_id}/jobs/new",
            "new job": f"/datasets/{dataset_id}/jobs/new?type=shifted_grid",
            "jobs": "/jobs",
            "job": f"/jobs/{finished}",
            "result": f"/jobs/{finished}/result",
            "compare": f"/compare?of={finished}&of={finished}",
            "round": f"/rounds/{used.id}",
            "keys": "/keys",
            "webhooks": "/webhooks",
            "audit": "/audit",
        }.items():
            sizes: list[int] = []
            fresh = page.context.browser.new_context(  # type: ignore[union-attr]  # empty browser cache
                base_url=served.url, storage_state=page.context.storage_state()
            )
            page_without_cache = fresh.new_page()
            page_without_cache.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))  # noqa: B023
            page_without_cache.goto(f"/console{path}", wait_until="networkidle")
            answered = page_without_cache.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
            paint = page_without_cache.evaluate(FIRST_CONTENTFUL_PAINT)
            fresh.close()
            print(f"{name}: first contentful paint {paint:.0f} ms, answered {answered:.0f} ms, {sum(sizes)} bytes")
            record_property(name, (sum(sizes), paint))
            assert 0 < sum(sizes) <= MAX_WEIGHT_BYTES
            assert paint <= PAINT_MILLISECONDS
