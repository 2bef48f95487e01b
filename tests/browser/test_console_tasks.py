"""Ten questions of analysts and privacy officers, each answered with at most three clicks from the overview."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from sfumato import Feature, UniformGrid
from sfumato.device.bulk import perturb_records
from sfumato.specs import GridEncoding
from tests.browser.conftest import PATIENCE_MILLISECONDS, Served, Watched

pytestmark = pytest.mark.slow

MAX_CLICKS = 3
NAME = "people at lunch"
FEATURES = [Feature("east", 0, 10, "km"), Feature("north", 0, 10, "km")]

expect.set_options(timeout=PATIENCE_MILLISECONDS)

Open = Callable[..., Watched]


class Visit:
    """A page of the console. It counts the clicks from the overview."""

    def __init__(self, page: Page, secret: str) -> None:
        page.goto("/console/")
        page.get_by_label("Key").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        self.page, self.n_clicks = page, 0

    def click(self, target: Locator) -> "Visit":
        """Click, unless there were too many clicks."""
        self.n_clicks += 1
        assert self.n_clicks <= MAX_CLICKS
        target.first.click()
        return self

    def link(self, name: str) -> "Visit":
        """Follow the first link with this name."""
        return self.click(self.page.get_by_role("main").get_by_role("link", name=name))

    def menu(self, name: str) -> "Visit":
        """Follow a link of the navigation."""
        return self.click(self.page.get_by_role("navigation", name="Console").get_by_role("link", name=name))

    def reads(self, text: str) -> None:
        """Check that the page shows a text."""
        expect(self.page.get_by_role("main")).to_contain_text(text)


@pytest.fixture(scope="module")
def world(served: Served) -> str:
    """Return the id of a dataset with a finished job, a failed job and an open round."""
    client = served.client
    dataset_id = client.create_dataset(NAME, FEATURES, epsilon=20, min_reports=100).id
    finished = client.submit_job(dataset_id, UniformGrid(4.0, clusters=2, cells=8), target_reports=3000)
    failed = client.submit_job(dataset_id, UniformGrid(1.0, clusters=2, cells=4), target_reports=200)
    chance = np.random.default_rng(1)
    people = np.array([[2.0, 3.0], [8.0, 7.0]])[chance.integers(0, 2, 3000)] + chance.normal(0, 0.7, (3000, 2))
    for job, records in ((finished, people), (failed, people[:20])):
        while (round_id := client.get_job(job.id).progress.open_round_id) is None:
            time.sleep(0.1)
        client.send_reports(round_id, *perturb_records(client.get_round(round_id).spec, records))
    client.close_round(round_id)
    assert client.wait_for_job(finished.id, timeout_seconds=240).state == "succeeded"
    assert client.wait_for_job(failed.id, timeout_seconds=240).state == "failed"
    client.open_round(dataset_id, GridEncoding((4, 4)), epsilon=0.5, target_reports=1000)
    client.create_webhook("https://hooks.example.invalid/", ["job.succeeded"])
    return dataset_id


TASKS: dict[str, Callable[[Visit], None]] = {
    "why did the job fail, and what would have been needed": lambda visit: visit.link("Uniform grid, ε 1").reads(
        "the round is closed with 20 reports, at least 100 are needed: submit a new job"
    ),
    "which job spent most of the budget": lambda visit: visit.link(NAME).reads("Uniform grid, ε 4"),
    "who granted the budget": lambda visit: visit.link(NAME).link("Ledger").reads("grantfirst admin"),
    "is the ledger intact": lambda visit: (
        visit.link(NAME)
        .link("Ledger")
        .click(visit.page.get_by_role("button", name="Verify"))
        .reads("form an unbroken hash chain")
    ),
    "is a cluster real": lambda visit: visit.link("Uniform grid, ε 4").link("View result").reads("Beyond noise"),
    "how full is the open round": lambda visit: visit.reads("0 of 1,000"),
    "what would a job find": lambda visit: visit.link(NAME).link("New job").link("shifted_grid").reads("Forecast"),
    "how is the job submitted again": lambda visit: visit.link("Uniform grid, ε 4").link("Duplicate").reads("Review"),
    "which keys exist, and what may they do": lambda visit: visit.menu("Keys").reads("first admin"),
    "who did what": lambda visit: visit.menu("Audit trail").reads("webhook"),
}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("task", TASKS)
def test_is_answered_with_three_clicks(served: Served, opened: Open, task: str) -> None:
    TASKS[task](Visit(opened().page, served.secret))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("path", ["keys", "audit", "webhooks"])
def test_tables_are_cards_on_a_phone(served: Served, opened: Open, path: str) -> None:
    page = Visit(opened(viewport={"width": 390, "height": 800}).page, served.secret).page
    page.goto(f"/console/{path}")
    row = page.locator("tbody tr").first
    assert row.evaluate("row => getComputedStyle(row).display") == "block"
    labels = row.locator("td").evaluate_all("cells => cells.map(c => getComputedStyle(c, '::before').content)")
    headers = page.locator("thead th").all_text_contents()
    assert {label.strip('"') for label in labels} <= set(headers)
    assert len(labels) >= 3
