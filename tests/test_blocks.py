"""Every block of code in the documents runs in the order of its page, or states why it does not run and parses."""

import ast
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from sfumato import Client, Feature, GridEncoding
from tests.blocks import PAGES, ROOT, SCRIPTS, SHELL, Block, blocks_of, found_in
from tests.service.processes import environment, running, until
from tests.sessions import Session

# The reasons not to run a block. A page names one and may add text.
REASONS = (
    "needs Docker",
    "needs a cluster",
    "needs a shuffler",
    "needs a release",
    "takes minutes",
    "the tests start the service themselves",
)
MOST_NOT_RUN = 20
START_SECONDS = 600.0

ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = {page: [block for block in blocks_of(page) if block.is_run] for page in PAGES}
LANGUAGES = {*SHELL, *SCRIPTS, "python", "json", "yaml", "toml", "text"}


def named(block: Block) -> str:
    return block.name


class TestEveryBlock:
    def test_they_are_found(self) -> None:
        assert len(ALL_BLOCKS) > 40
        assert {block.language for block in ALL_BLOCKS} >= {"sh", "python", "json", "text", "ts", "js"}

    @pytest.mark.parametrize("block", ALL_BLOCKS, ids=named)
    def test_names_its_language_and_parses(self, block: Block) -> None:
        assert block.language in LANGUAGES, "a block is fenced and names its language; what is no code is `text`"
        if block.language in SHELL:
            parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert (parsed.returncode, parsed.stderr) == (0, "")
        elif block.language == "python":
            ast.parse(block.text)
        elif block.language in ("json", "yaml", "toml"):
            {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}[block.language](block.text)

    def test_few_are_not_run_and_each_says_why(self) -> None:
        reasons = [(block.name, block.not_run) for block in ALL_BLOCKS if block.not_run]
        assert [each for each in reasons if not each[1].startswith(REASONS)] == []
        assert len(reasons) <= MOST_NOT_RUN

    def test_who_runs_a_block_instead_is_there_and_names_its_page(self) -> None:
        for block in ALL_BLOCKS:
            if block.run_by:
                assert Path(block.page).name in (ROOT / block.run_by).read_text(), block.name


MARKED = """\
<!-- not run: needs Docker -->
```sh
docker ps
```

Words, then code without a mark:

```python
x = 1
```

    an indented block

<!-- run by: tests/test_docs.py -->

```json
{}
```
"""


class TestFinding:
    def test_a_mark_is_the_next_block_s_alone(self) -> None:
        found = [(block.line, block.language, block.not_run, block.run_by) for block in found_in("page", MARKED)]
        assert found == [
            (3, "sh", "needs Docker", ""),
            (9, "python", "", ""),
            (12, "", "", ""),
            (17, "json", "", "tests/test_docs.py"),
        ]


class TestRunning:
    @pytest.fixture
    def alone(self, tmp_path: Path) -> Iterator[Session]:
        """A session without a service."""
        opened = Session(tmp_path, dict(os.environ), {"theirs": "ours"})
        yield opened
        opened.close()

    def test_goes_on_with_what_blocks_before_left(self, alone: Session) -> None:
        alone.run(Block("page", 1, "sh", "NAME=theirs\nmkdir made\ncd made\n"))
        alone.run(Block("page", 9, "python", "number = 41\n"))
        alone.run(Block("page", 12, "sh", 'echo "$NAME in ${PWD##*/}"\n'))
        alone.run(Block("page", 15, "python", "print(number + 1)\n"))
        assert alone.output.splitlines() == ["ours in made", "42"]

    @pytest.mark.parametrize(
        ("language", "text", "words"),
        [
            ("sh", "echo before\nfalse\necho after\n", "before"),
            ("sh", "cat missing | cat\n", "missing"),
            ("sh", 'echo "$UNKNOWN_NAME"\n', "UNKNOWN_NAME"),
            ("python", "x = 1\nraise ValueError('no')\n", "line 8"),
            ("python", "import sys; sys.exit(0)\n", "failed"),
        ],
    )
    def test_stops_where_a_block_fails(self, alone: Session, language: str, text: str, words: str) -> None:
        with pytest.raises(AssertionError, match=words) as failed:
            alone.run(Block("page", 7, language, text))
        assert "after" not in str(failed.value).split("printed:")[-1]

    def test_notices_a_print_that_says_something_else(self, alone: Session) -> None:
        kept_its_word(alone, Block("page", 1, "python", "print(1 + 1)  # 2\n"))
        with pytest.raises(AssertionError, match="printed"):
            kept_its_word(alone, Block("page", 4, "python", "print(1 + 1)  # 3\n"))


class TestResponses:
    FOUND: ClassVar = {
        "id": "ds_" + "0" * 26,
        "at": "2026-01-01T00:00:00.000000Z",
        "items": [{"n": 1, "m": 2.0}],
        "no": None,
    }

    @pytest.mark.parametrize(
        ("shown", "fits"),
        [
            ({}, True),
            ({"id": "ds_" + "1" * 26, "items": [{"m": 2.0}]}, True),
            ({"at": "2027-01-01T00:00:00.100000Z", "no": None}, True),
            ({"id": "job_" + "1" * 26}, False),
            ({"id": "2027-01-01T00:00:00.100000Z"}, False),
            ({"items": [{"n": 2}]}, False),
            ({"items": []}, False),
            ({"other": None}, False),
        ],
    )
    def test_show_members_that_exist(self, shown: dict[str, object], fits: bool) -> None:
        (found,) = objects_in(f"words {json.dumps(self.FOUND)} 1 of 2 {{"[:-1])
        assert is_part(shown, found) == fits


@dataclass(frozen=True)
class Live:
    """A service as `sfumato serve` begins it, and what the reader of a page has been given."""

    url: str
    home: Path
    key: str
    dataset_id: str

    def session(self, place: Path) -> Session:
        """A directory like a fresh checkout in which the service was begun."""
        (place / ".venv").symlink_to(Path(sys.prefix))
        (place / ".sfumato").symlink_to(self.home)
        own = environment(self.home) | {"SFUMATO_URL": self.url, "SFUMATO_KEY": self.key}
        own["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), own["PATH"]])
        return Session(place, own, {"http://127.0.0.1:8000": self.url, "https://sfumato.example": self.url})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Run a service with a warm worker.

    docs/get-started.md waits half a minute for a job, which is too short for a worker that compiles on a busy machine.
    """
    home = tmp_path_factory.mktemp("documents") / ".sfumato"
    with running(home, "serve", "--port", "0", SFUMATO_WARM_KERNELS="true") as service:
        url, key = service.url(), (home / "admin.key").read_text().strip()
        until(lambda: "kernels_compiled" in service.log, START_SECONDS)
        with Client(url, key) as client:
            features = [Feature("east", 0, 10), Feature("north", 0, 10)]
            dataset = client.create_dataset("given", features, epsilon=2, min_reports=100)
            client.open_round(dataset.id, GridEncoding((8, 8)), epsilon=1, target_reports=1000)
        yield Live(url, home, key, dataset.id)


@pytest.fixture
def session(live: Live, tmp_path: Path) -> Iterator[Session]:
    opened = live.session(tmp_path)
    given = f"import os\nurl, key, dataset_id = {live.url!r}, {live.key!r}, {live.dataset_id!r}\n"
    opened.run(Block("given", 1, "python", given))
    yield opened
    opened.close()


def walked(session: Session, page: str) -> str:
    """Run all blocks of a page, compare each `print(…)  # this` with its comment, and return the output.

    A JSON block of docs/get-started.md is a part of a response that the block before it printed.
    """
    before = 0
    for block in RUN[page]:
        if block.language in (*SHELL, "python"):
            before = len(session.output)
            kept_its_word(session, block)
        elif block.language == "json" and page == "docs/get-started.md":
            printed = list(objects_in(session.output[before:]))
            assert any(is_part(json.loads(block.text), each) for each in printed), f"{block.name}: {printed}"
    return session.output


def objects_in(text: str) -> Iterator[Any]:
    """Yield the JSON objects in an output."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        found, at = decoder.raw_decode(text, at)
        yield found
        at = text.find("{", at)


CHOSEN = re.compile(r"(?P<id>[a-z]{2,3}_)[0-9a-z]{26}|(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z)|(?P<hash>[0-9a-f]{64})")


def is_part(shown: Any, found: Any) -> bool:
    """Return whether a value has all members that a page shows. Ids, times and hashes differ in each run."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(name in found and is_part(shown[name], found[name]) for name in shown)
    if isinstance(shown, list):
        return isinstance(found, list) and len(shown) == len(found) and all(map(is_part, shown, found))
    if isinstance(shown, str) and (one := CHOSEN.fullmatch(shown)) and (other := CHOSEN.fullmatch(str(found))):
        return one.lastgroup == other.lastgroup and one["id"] == other["id"]
    return bool(shown == found) and type(shown) is type(found)


def kept_its_word(session: Session, block: Block) -> None:
    before = len(session.output)
    session.run(block)
    printed = session.output[before:].splitlines()
    promised = re.findall(r"^ *print\(.*\)  # (.+)$", block.text, flags=re.MULTILINE)
    assert [line for line in promised if line not in printed] == [], f"{block.name} printed {printed}"


def has_code(page: str) -> bool:
    return any(block.language in (*SHELL, "python") for block in RUN[page])


CHECKED = ("docs/get-started.md", "docs/tutorials/app.md", "docs/tutorials/notebook.md", "docs/tutorials/ledger.md")
PLACES = [(2, 3), (5, 8), (7, 2)]  # the records of docs/get-started.md


def nearest(centroid: list[float]) -> tuple[int, int]:
    return min(PLACES, key=lambda place: math.dist(place, centroid))


@pytest.mark.timeout(900)
@pytest.mark.slow
class TestEveryPage:
    @pytest.mark.parametrize("page", [page for page in PAGES if has_code(page) and page not in CHECKED])
    def test_runs_word_for_word(self, session: Session, page: str) -> None:
        walked(session, page)

    def test_the_first_steps_come_to_what_they_say(self, session: Session) -> None:
        said = walked(session, "docs/get-started.md")
        result = json.loads((session.place / "result.json").read_text())
        assert result["rounds"][0]["n_reports"] == 20_001
        assert result["model"]["n_clusters"] == 3
        # The noise is real: no two runs agree, and now and then a centroid is off by a kilometre.
        assert sorted(nearest(place) for place in result["model"]["centroids"]) == PLACES
        assert "of people around" in said
        central = json.loads((session.place / "central.json").read_text())
        for place, truth in zip(sorted(central["model"]["centroids"]), PLACES, strict=True):
            assert place == pytest.approx(truth, abs=0.3)
        assert central["epsilon"] == 0.1
        assert (session.place / "plot.svg").read_text().lstrip().startswith("<?xml")

    def test_an_app_reports_once(self, session: Session) -> None:
        said = walked(session, "docs/tutorials/app.md")
        assert said.splitlines() == ["sent 1.0", "already_answered 1.0", "cap_exceeded 0.0", "unreachable ()"]
        assert (session.place / "device.json").stat().st_mode & 0o777 == 0o600

    def test_an_analyst_finds_the_three_places(self, session: Session) -> None:
        said = walked(session, "docs/tutorials/notebook.md")
        assert "succeeded None" in said
        places = [(float(x), float(y)) for x, y in re.findall(r"people around \[([\d.]+) +([\d.]+)\s*\]", said)]
        assert sorted(nearest(list(place)) for place in places) == PLACES
        assert (session.place / "clusters.svg").read_text().lstrip().startswith("<?xml")

    def test_an_officer_sees_what_was_spent_and_by_whom(self, session: Session) -> None:
        said = walked(session, "docs/tutorials/ledger.md")
        assert "budget_exhausted 1.0 1.5 2.0" in said
        assert re.search(r"^1 20\S+ grant 2000000000 ", said, flags=re.MULTILINE)
        assert re.search(
            r"^ds_\w+: \d+ entries, head \w{16}: ok; all charges together certify ε \S+ at δ \S+$",
            said,
            flags=re.MULTILINE,
        )
        assert re.search(r"^default: \d+ events, head \w{16}: ok$", said, flags=re.MULTILINE)
        assert '"act":"grant.created"' in said.replace(" ", "")
