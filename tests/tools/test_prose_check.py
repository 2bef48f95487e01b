"""The prose check finds planted bad sentences with their lines, and accepts plain ones."""

import subprocess
from pathlib import Path

import pytest

from tools import prose_check

PLAIN = '''"""Queue of reports that wait for the next commit."""

LIMIT = 20  # seconds between lease renewals
# Each report has one row.
# of the log; this line continues the comment above

SEPARATOR = " # whose string is no comment"


class Queue:
    """A queue of `whoever` reports."""

    @property
    def size(self) -> int:
        """The number of reports."""

    def take(self) -> None:
        """Return the next report."""
'''
LONG = "A sentence " + "with one more word " * 5 + "has twenty-six words ahead."


def findings(path: str, text: str) -> list[tuple[int, str]]:
    """Return line and rule of the findings in one file."""
    return [(each.line, each.rule) for each in prose_check.check({path: text})]


class TestPython:
    def test_plain_text_has_no_findings(self) -> None:
        assert findings("models/queue.py", PLAIN) == []

    @pytest.mark.parametrize(
        ("good", "bad", "line", "rule"),
        [
            ("Queue of reports that wait", "Queue that nobody told", 1, "word"),
            ("seconds between lease renewals", "of the lease", 3, "fragment"),
            ("seconds between lease renewals", "seconds a lease is held", 3, "word"),
            ("Each report has", "Whose report has", 4, "fragment"),
            ("this line continues", "somebody continues", 5, "word"),
            ("A queue of `whoever` reports", "Whatever waits", 11, "fragment"),
            ("Return the next report.", "Return the next\n\n        report that a client asked for.", 20, "word"),
            ("Return the next report.", "The next report.", 18, "verb"),
            ("Return the next report.", "List of reports.", 18, "verb"),
        ],
    )
    def test_a_planted_sentence_is_found_at_its_line(self, good: str, bad: str, line: int, rule: str) -> None:
        assert PLAIN.count(good) == 1
        assert (line, rule) in findings("models/queue.py", PLAIN.replace(good, bad))

    def test_docstrings_without_a_verb_are_accepted_up_to_a_quarter_of_a_folder(self) -> None:
        texts = [f'def f():\n    """{first} the report."""\n' for first in ("Return", "Store", "Reject", "About")]
        assert prose_check.check({f"models/{i}.py": text for i, text in enumerate(texts)}) == []
        (found,) = prose_check.check({f"models/{i}.py": text for i, text in enumerate(texts[1:])})
        assert (found.path, found.rule) == ("models/2.py", "verb")

    def test_a_help_text_is_read(self) -> None:
        text = 'option = Option(\n    help="The tenant "\n    "that somebody uses.",\n)\n'
        assert [rule for _, rule in findings("service/cli.py", text)] == ["word"]
        assert findings("service/cli.py", text.replace("somebody", "a client")) == []


class TestMarkdown:
    def test_a_long_sentence_is_found_at_its_line(self) -> None:
        assert findings("docs/page.md", f"# Page\n\nShort.\n{LONG}\n") == [(4, "long")]
        assert findings("docs/page.md", f"# Page\n\nShort.\n{LONG.replace('one more', 'more')}\n") == []

    @pytest.mark.parametrize(
        "text",
        [
            f"```text\n{LONG} It was told.\n```\n",
            f"| {LONG} |\n|---|\n",
            "- An item with ten words in it and a few more\n" * 4,
            "See " + ", ".join(f"[the page about {i}](page{i}.md)" for i in range(12)) + ".\n",
            "A sentence with `" + "code " * 40 + "`.\n",
            "The command `told` and `who`.\n",
        ],
        ids=["code block", "table", "list", "links", "code", "names"],
    )
    def test_what_is_no_sentence_is_accepted(self, text: str) -> None:
        assert findings("docs/page.md", text) == []

    def test_a_rejected_word_is_found_in_tables_and_lists(self) -> None:
        assert findings("docs/page.md", "| term |\n|---|\n| who asks |\n\n- nobody\n") == [
            (3, "word"),
            (3, "word"),
            (5, "word"),
        ]


class TestOtherFiles:
    def test_a_template_is_read_without_its_code(self) -> None:
        text = "{% if told %}\n<p class='who'>{{ said }} reports</p>\n<p>Nobody</p>\n"
        assert findings("service/console/templates/jobs.html", text) == [(3, "word")]

    def test_descriptions_and_summaries_are_read(self) -> None:
        text = '{\n  "summary": "List jobs",\n  "description": "Who \\"asked\\".",\n  "title": "told"\n}\n'
        assert findings("openapi/openapi.json", text) == [(3, "word"), (3, "word")]


class TestCommand:
    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a repository with one finding in the folder `docs`."""
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "page.md").write_text("One.\nNobody.\n")
        (tmp_path / "README.md").write_text("A page.\n")
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_prints_the_findings_and_fails(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert prose_check.main() == 1
        assert capsys.readouterr().out == "docs/page.md:2: word: Nobody\n"
        (repository / "docs" / "page.md").write_text("One.\n")
        assert prose_check.main() == 0
        assert capsys.readouterr().out == ""
