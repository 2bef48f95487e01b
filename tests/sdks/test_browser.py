"""Tests of the TypeScript package in Chromium, on a page of another origin than the service."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import BrowserContext, Page, Route
from scipy import stats

from models.collection import report_log
from models.database.engine import Database
from sfumato import mechanisms
from sfumato.api.client import Client
from sfumato.api.resources import Round
from sfumato.specs import Feature, GridEncoding, GrrMechanism
from tests.browsers import PATIENCE_MILLISECONDS, opened_browser, served
from tests.service.processes import running

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VECTORS = ("reports", "caps", "devices", "refusals", "answers")
FEATURES = [Feature("east", 0, 8)]
N_PEOPLE = 1000
CELLS = 4
EPSILON = 2.0
LEAST_P = 1e-9  # a correct page has a smaller p in one of 1e9 runs

# The package, and a device of this page: `make(cap)`. A page begins with it.
PREPARE = """
async ({ url, key, dataset }) => {
  const sfumato = await import("/dist/index.js");
  window.sfumato = sfumato;
  window.store = new sfumato.IndexedDbStore();
  const given = { url, key, datasetId: dataset, cap: 8, store: window.store };
  window.make = (changes) => new sfumato.Device({ ...given, ...changes });
  window.dataset = dataset;
}
"""

# A service worker that reports once and returns the outcome.
WORKER = """
import { Device, IndexedDbStore } from "/dist/index.js";
self.onactivate = (event) => event.waitUntil(self.clients.claim());
self.onmessage = ({ data: { url, key, dataset }, ports }) => {
  const device = new Device({ url, key, datasetId: dataset, cap: 8, store: new IndexedDbStore("worker") });
  const tell = (text) => ports[0].postMessage(text);
  device.report([5]).then(({ outcome }) => tell(outcome), ({ message }) => tell(message));
};
"""


@dataclass(frozen=True)
class Place:
    """A service, an allowed origin of an app, and the database of the service."""

    url: str
    origin: str
    client: Client
    database: Database

    def asked(self, *, epsilon: float = 1.0, target: int = N_PEOPLE) -> tuple[Round, dict[str, str]]:
        """Create a dataset with an open round. Return the options of a device."""
        dataset = self.client.create_dataset("people", FEATURES, epsilon=8, min_reports=1)
        key = self.client.create_key("app", ["device"], dataset_id=dataset.id)
        assert key.secret is not None
        return self.open(dataset.id, epsilon, target), {"url": self.url, "key": key.secret, "dataset": dataset.id}

    def open(self, dataset_id: str, epsilon: float = 1.0, target: int = N_PEOPLE) -> Round:
        encoding = GridEncoding((CELLS,))
        return self.client.open_round(dataset_id, encoding, mechanism="grr", epsilon=epsilon, target_reports=target)

    def stored(self, round_id: str) -> list[tuple[str, bytes]]:
        """Return id and value of all stored reports of a `grr` round with four cells."""
        with self.database.reading() as session:
            log = b"".join(packed for _, packed in report_log.batches(session, round_id))
        return [(log[at : at + 16].hex(), log[at + 20 : at + 21]) for at in range(0, len(log), 21)]


@pytest.fixture(scope="module")
def origin(typescript: Path) -> Iterator[str]:
    (typescript / "empty.html").write_text("<!doctype html><title>An app</title>")
    (typescript / "vectors").mkdir(exist_ok=True)
    for name in VECTORS:
        (typescript / "vectors" / f"{name}.json").write_bytes(
            (ROOT / "openapi" / "vectors" / f"{name}.json").read_bytes()
        )
    with served(typescript) as address:
        yield address


@pytest.fixture(scope="module")
def place(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("service") / "home"
    with running(home, "serve", "--port", "0", SFUMATO_CORS_ORIGINS=origin, SFUMATO_SOURCE_LIMIT="none") as service:
        url = service.url()
        database = Database(f"sqlite:///{home / 'sfumato.db'}", pool_size=2)
        with Client(url, (home / "admin.key").read_text().strip()) as client:
            yield Place(url, origin, client, database)
        database.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture
def profile(browser: Chromium) -> Iterator[BrowserContext]:
    """Return a new browser profile."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    yield context
    context.close()


def a_page(profile: BrowserContext, origin: str, given: dict[str, str] | None = None) -> Page:
    """Open a tab of the app."""
    page = profile.new_page()
    page.goto(f"{origin}/empty.html")
    if given is not None:
        page.evaluate(PREPARE, given)
    return page


class TestTheVectors:
    def test_match_byte_by_byte(self, profile: BrowserContext, origin: str) -> None:
        done = a_page(profile, origin).evaluate(
            """
            async (names) => {
              const sfumato = await import("/dist/index.js");
              const { createCases } = await import("/test/cases.mjs");
              const read = async (name) => [name, (await (await fetch(`/vectors/${name}.json`)).json())[name]];
              const vectors = Object.fromEntries(await Promise.all(names.map(read)));
              const failed = [];
              let place = 0;
              let reports = 0;
              const stores = () => new sfumato.IndexedDbStore(`vectors-${(place += 1)}`);
              const all = createCases(sfumato, vectors, stores);
              for (const { name, n, run } of all) {
                try { await run(); reports += n; } catch (error) { failed.push(`${name}: ${error}`); }
              }
              return { n: all.length, reports, failed };
            }
            """,
            list(VECTORS),
        )
        held = [json.loads((ROOT / "openapi" / "vectors" / f"{name}.json").read_text())[name] for name in VECTORS]
        assert done["failed"] == []
        assert done["n"] == sum(map(len, held)) >= 100
        assert done["reports"] == sum(len(case["reports"]) for case in held[0]) >= 200


class TestTheMemory:
    def test_is_shared_by_two_tabs_so_that_a_round_is_answered_once(
        self, profile: BrowserContext, place: Place
    ) -> None:
        round_, given = place.asked()
        tabs = [a_page(profile, place.origin, given) for _ in range(2)]
        starter = a_page(profile, place.origin)
        for _ in range(8):
            for tab in tabs:  # both wait for the same word
                tab.evaluate(
                    """() => {
                      window.done = new Promise((resolve) => {
                        const channel = new BroadcastChannel("start");
                        channel.onmessage = () => resolve(make().report([5]).then(({ outcome }) => outcome));
                      });
                    }"""
                )
            starter.evaluate("() => new BroadcastChannel('start').postMessage('now')")
            outcomes = [tab.evaluate("() => window.done") for tab in tabs]
            # The second tab sends the same bytes again if both come before the acknowledgement.
            assert "sent" in outcomes
            assert set(outcomes) <= {"sent", "already_answered"}
            assert len(set(place.stored(round_.id))) == 1
            place.client.close_round(round_.id)
            round_ = place.open(given["dataset"], epsilon=0.5)

    def test_survives_the_page(self, browser: Chromium, profile: BrowserContext, place: Place) -> None:
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        answer = "async () => [(await make().report([5])).outcome, await make().spent()]"
        assert tab.evaluate(answer) == ["sent", 1]
        before = place.stored(round_.id)
        tab.reload()
        tab.evaluate(PREPARE, given)
        assert tab.evaluate("async () => [(await make().report([1])).outcome, await make().spent()]") == [
            "already_answered",
            1,
        ]
        assert place.stored(round_.id) == before
        other = browser.new_context()  # another browser, without the memory of the first
        assert a_page(other, place.origin, given).evaluate(answer) == ["sent", 1]
        assert len(place.stored(round_.id)) == 2
        other.close()

    def test_keeps_the_bytes_of_an_unsent_report(self, profile: BrowserContext, place: Place) -> None:
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        profile.route("**/reports", lambda route: route.abort())
        tell = "async () => make({ retrySeconds: 0 }).report([5]).then(({ outcome }) => outcome, ({ code }) => code)"
        assert tab.evaluate(tell) == "unreachable"
        kept = tab.evaluate("async () => Object.values((await store.read(dataset)).memos)")
        tab.close()
        profile.unroute("**/reports")
        later = a_page(profile, place.origin, given)
        assert later.evaluate("async () => (await make().flush()).map(({ outcome }) => outcome)") == ["sent"]
        assert [each["reportId"] for each in kept] == [name for name, _ in place.stored(round_.id)]

    def test_keeps_a_report_while_the_page_is_offline(self, profile: BrowserContext, place: Place) -> None:
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        tab.evaluate("async () => { window.one = make({ retrySeconds: 0 }); await one.fetchRounds(); }")
        tell = "async () => one.report([5]).then(({ outcome }) => outcome, ({ code }) => code)"
        profile.set_offline(True)
        assert tab.evaluate(tell) == "unreachable"  # nothing is known of the round, so nothing is spent
        assert tab.evaluate("async () => one.spent()") == 0
        profile.set_offline(False)
        profile.route("**/reports", lambda route: route.abort("internetdisconnected"))
        assert tab.evaluate(tell) == "unreachable"
        assert tab.evaluate("async () => [(await one.pending()).length, await one.spent()]") == [1, 1]
        profile.unroute("**/reports")
        assert tab.evaluate(tell) == "sent"
        assert len(place.stored(round_.id)) == 1

    def test_sends_the_same_bytes_after_the_page_was_closed_while_sending(
        self, profile: BrowserContext, place: Place
    ) -> None:
        """Check a request that never left, and one with a response that the page did not see."""
        for arrives in (False, True):
            round_, given = place.asked()
            tab = a_page(profile, place.origin, given)
            sent = []

            def hold(route: Route, arrives: bool = arrives, sent: list[str] = sent) -> None:
                sent.append(str(route.request.post_data))
                if arrives:
                    route.fetch()  # the service stores the report, and the page receives nothing

            profile.route("**/reports", hold)
            with tab.expect_request("**/reports"):
                tab.evaluate("() => { make().report([5]); }")
            while not sent or (arrives and not place.stored(round_.id)):
                tab.wait_for_timeout(20)
            tab.close()
            profile.unroute("**/reports", hold)
            later = a_page(profile, place.origin, given)
            with later.expect_request("**/reports") as again:
                assert later.evaluate("async () => (await make().report([1])).outcome") == "sent"
            assert again.value.post_data == sent[0]
            assert len(set(place.stored(round_.id))) == 1
            later.close()

    def test_is_opened_again_after_the_browser_closed_or_the_app_deleted_it(
        self, profile: BrowserContext, place: Place
    ) -> None:
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        assert tab.evaluate("async () => (await make().report([5])).outcome") == "sent"
        deleted = """() => new Promise((resolve, reject) => {
          const request = indexedDB.deleteDatabase("sfumato");
          request.onsuccess = () => resolve("deleted");
          request.onblocked = () => reject(new Error("blocked"));
        })"""
        assert tab.evaluate(deleted) == "deleted"
        assert tab.evaluate("async () => Object.keys((await store.read(dataset)).memos)") == []
        session = profile.new_cdp_session(tab)
        told = {"origin": place.origin, "storageTypes": "indexeddb"}
        session.send("Storage.clearDataForOrigin", told)  # closes the connections too
        changed = "async () => store.change(dataset, (memory) => { memory.draws.c = '1'; }).then(() => 'changed')"
        assert tab.evaluate(changed) == "changed"
        assert len(place.stored(round_.id)) == 1

    def test_works_in_a_service_worker(self, profile: BrowserContext, place: Place, typescript: Path) -> None:
        round_, given = place.asked()
        (typescript / "worker.mjs").write_text(WORKER)
        tab = a_page(profile, place.origin)
        asked = """async (given) => {
          await navigator.serviceWorker.register("/worker.mjs", { type: "module" });
          const { active } = await navigator.serviceWorker.ready;
          const channel = new MessageChannel();
          const told = new Promise((resolve) => { channel.port1.onmessage = ({ data }) => resolve(data); });
          active.postMessage(given, [channel.port2]);
          return told;
        }"""
        assert tab.evaluate(asked, given) == "sent"
        assert len(place.stored(round_.id)) == 1

    def test_is_unchanged_after_a_failed_change(self, profile: BrowserContext, place: Place) -> None:
        """Check an error in the change and a full disk. In both cases the device sends nothing."""
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        told = tab.evaluate(
            """async () => {
              await store.change(dataset, (memory) => { memory.draws.first = "1"; });
              const before = JSON.stringify(await store.read(dataset));
              const mistake = await store.change(dataset, (memory) => {
                memory.draws.first = "2";
                throw new RangeError("a mistake");
              }).catch((error) => error.name);
              const put = IDBObjectStore.prototype.put;
              IDBObjectStore.prototype.put = function (...given) {
                const request = put.apply(this, given);
                this.transaction.abort(); // as a browser does whose disk is full
                return request;
              };
              const full = await make().report([5]).catch(({ code }) => code);
              IDBObjectStore.prototype.put = put;
              return { mistake, full, same: before === JSON.stringify(await store.read(dataset)) };
            }"""
        )
        assert told == {"mistake": "RangeError", "full": "store_unusable", "same": True}
        assert place.stored(round_.id) == []
        assert tab.evaluate("async () => (await make().report([5])).outcome") == "sent"

    def test_that_is_damaged_is_not_replaced(self, profile: BrowserContext, place: Place) -> None:
        round_, given = place.asked()
        tab = a_page(profile, place.origin, given)
        code = tab.evaluate(
            """async () => {
              await store.change(dataset, (memory) => { memory.draws.first = "not a number"; });
              return make().report([5]).catch(({ code }) => code);
            }"""
        )
        assert code == "store_unusable"
        assert place.stored(round_.id) == []


class TestAPageOfAnUnknownOrigin:
    def test_cannot_report_and_learns_the_setting(
        self, profile: BrowserContext, place: Place, typescript: Path
    ) -> None:
        round_, given = place.asked()
        with served(typescript) as stranger:
            tab = a_page(profile, stranger, given)
            told = tab.evaluate("async () => make().report([5]).catch(({ code, message }) => [code, message])")
            seconds = tab.evaluate("() => performance.now() / 1000")
        print(f"a missing origin is named after {seconds:.1f} s of the page's life")
        assert told[0] == "unreachable"
        assert f"add {stranger} to SFUMATO_CORS_ORIGINS" in told[1]
        assert seconds < 25  # without the name, retries would take 30 s
        assert place.stored(round_.id) == []


class TestManyDevices:
    def test_reports_follow_the_published_probabilities(self, profile: BrowserContext, place: Place) -> None:
        """Check the reports of the page in sdk/typescript/examples for 1,000 people with separate memories.

        A chi-square statistic compares the reported values of each cell with the mechanism. The test detects a wrong
        epsilon: with half or 1.6 times the epsilon, the number of reports of the true cell would differ by more than
        eight standard deviations.
        """
        round_, given = place.asked(epsilon=EPSILON, target=N_PEOPLE + 1)
        cells = [person % 10 for person in range(N_PEOPLE)]
        cells = [0 if cell < 4 else 1 if cell < 7 else 2 if cell < 9 else 3 for cell in cells]
        tab = profile.new_page()
        tab.goto(f"{place.origin}/examples/report.html")
        for name, value in {**given, "cap": "2", "records": "\n".join(f"{2 * cell + 1}" for cell in cells)}.items():
            tab.locator(f"[name={name}]").fill(value)
        tab.get_by_role("button", name="Send reports").click()
        tab.wait_for_selector("output[data-done]", state="attached")
        assert tab.locator("output").inner_text() == f"{N_PEOPLE} sent"

        names = tab.evaluate(READ_MEMORIES, {"n": N_PEOPLE, "dataset": given["dataset"], "round": round_.id})
        cell_of = dict(zip(names, cells, strict=True))
        stored = place.stored(round_.id)
        assert Counter(name for name, _ in stored) == Counter(names)  # each once, and none that no device sent
        sent = Counter((cell_of[name], value) for name, value in stored)
        mechanism = round_.spec.mechanism
        assert isinstance(mechanism, GrrMechanism)  # mypy needs it
        p = p_value(sent, Counter(cells), mechanism)
        print(f"chi-square over {CELLS} x {CELLS} values of {N_PEOPLE} people: p = {p:.3g}")
        assert p > LEAST_P
        n_own = sum(n for (cell, value), n in sent.items() if value == bytes([cell]))
        for wrong in (0.5, 1.6):
            off = mechanisms.design("grr", CELLS, round(wrong * EPSILON * 1e9))
            assert stats.binomtest(n_own, N_PEOPLE, float(off.channel()[b"\0"][0])).pvalue < LEAST_P

        place.client.close_round(round_.id)
        assert place.client.get_round(round_.id).n_received == N_PEOPLE


READ_MEMORIES = """
async ({ n, dataset, round }) => {
  const { IndexedDbStore } = await import("/dist/index.js");
  const names = [];
  for (let person = 0; person < n; person += 1) {
    const store = new IndexedDbStore(`sfumato-person-${person}`);
    names.push((await store.read(dataset)).memos[round].reportId);
    await store.close();
  }
  return names;
}
"""


def p_value(sent: "Counter[tuple[int, bytes]]", n_of: "Counter[int]", mechanism: GrrMechanism) -> float:
    """Return the chi-square statistic of the reports of each cell against the exact probabilities."""
    chances: dict[bytes, Any] = mechanism.channel()
    expected = {(cell, value): n * float(row[cell]) for cell, n in n_of.items() for value, row in chances.items()}
    assert set(sent) <= set(expected)
    assert min(expected.values()) > 3
    statistic = sum((sent[each] - mean) ** 2 / mean for each, mean in expected.items())
    return float(stats.chi2.sf(statistic, len(n_of) * (len(chances) - 1)))
