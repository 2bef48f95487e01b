"""Check the prose of the repository: rejected words, fragments, long sentences, docstrings without a verb.

    python tools/prose_check.py

Reads docstrings, comments and help texts of the tracked Python files, Markdown, the console's templates, and the
descriptions in openapi/openapi.json. Text in backticks is code and is ignored. Prints one line per finding:

    word      a word of the reject list
    fragment  a docstring or comment that starts with a word such as `of`
    long      a Markdown sentence of more than 25 words
    verb      a function docstring that does not start with a verb, in a folder with less than 75 % that do

Ends with status 1 if there is a finding.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 25  # words per sentence
LEAST_VERBS = 0.75  # share of function docstrings that start with a verb
READ = ("*.py", "*.md", "service/**/templates/*.html", "openapi/openapi.json")
VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").split())

REJECTED = re.compile(
    r"\b(who|whom|whose|whoever|whatever|somebody|nobody|everybody|anybody|told|tells?|said|says?|held|ask(?:s|ed|ing)?"
    r"|wanted|hears?|heard|likeliest|anew|meanwhile|beforehand|for ever|goes on|at hand"
    r"|doorbell|bulletin|crowds?|ears?|mouth|look(?:s|ed|ing)? (?:at|for|into)|a look)\b",
    re.IGNORECASE,
)
FRAGMENT = re.compile(r"(of|by|whose|that|who|what|whatever|so|as|for|how|where|such)\b", re.IGNORECASE)
DIRECTIVE = re.compile(r"noqa|type:|pragma|fmt:|mypy:|ruff:|!|-\*-")
CODE = re.compile(r"``.*?``|`[^`\n]*\n?[^`\n]*`")
STRING = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
# Comments of Python. Strings are alternatives, because they may contain the character that starts a comment.
LEXER = re.compile(rf'("""|\'\'\')(?:\\.|[^\\])*?\1|{STRING}|(?P<comment>#[^\n]*)', re.DOTALL)
HELP = re.compile(rf"\bhelp=\(?\s*((?:f?(?:{STRING})\s*)+)")
DESCRIPTION = re.compile(r'^ *"(?:description|summary)": (".*"),?$')
NOT_HTML_TEXT = re.compile(r"{[{%#].*?[}%#]}|<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.DOTALL | re.MULTILINE)
NOT_SENTENCES = re.compile(r"^(?:\||#).*$|<!--.*?-->|!\[[^]]*\]\([^)]*\)", re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
PARAGRAPH = re.compile(r"\S.*(?:\n(?! *(?:[-*+]|\d+\.) )(?=.*\S).*)*")  # a list item is a paragraph
SENTENCE = re.compile(r"\S.*?(?:[.!?][)\"”*]*(?=\s)|\Z)", re.DOTALL)
WORD = re.compile(r"[A-Za-z][\w'’-]*")


class Finding(NamedTuple):
    """A place in a text that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    @property
    def folder(self) -> str:
        """Return the top-level folder, or "." for a file outside the folders."""
        return self.path.split("/")[0] if "/" in self.path else "."


def blank(match: re.Match[str]) -> str:
    """Return spaces and the line ends of a match, which keeps the numbers of the lines."""
    return re.sub(r"[^\n]", " ", match.group())


def find_words(path: str, text: str, line: int = 1) -> Iterator[Finding]:
    """Find rejected words in a text that starts at a line."""
    for match in REJECTED.finditer(text := CODE.sub(blank, text)):
        yield Finding(path, line + text.count("\n", 0, match.start()), "word", match.group())


def find_in_python(path: str, text: str) -> Iterator[Finding]:
    """Find rejected words and fragments; a `verb` or `no verb` for each function docstring."""
    passages = list(comments(text))
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        parts = chain.from_iterable(getattr(node, name, ()) for name in ("body", "orelse", "finalbody", "handlers"))
        nodes += (part for part in parts if isinstance(part, ast.stmt | ast.excepthandler))
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if docstring := ast.get_docstring(node):
            line = node.body[0].lineno
            passages.append((line, docstring))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
                rule = "verb" if starts_with_verb(docstring) else "no verb"
                yield Finding(path, line, rule, docstring.split("\n")[0])
    for line, passage in passages:
        yield from find_words(path, passage, line)
        if FRAGMENT.match(passage):
            yield Finding(path, line, "fragment", passage.split("\n")[0])
    for match in HELP.finditer(text):
        yield from find_words(path, match.group(1), 1 + text.count("\n", 0, match.start(1)))


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a property; its docstring may be a noun phrase."""
    return any(ast.unparse(each).endswith("property") for each in node.decorator_list)


def starts_with_verb(docstring: str) -> bool:
    """Return whether the first word is a verb; it is in "List the jobs" and is not in "List of jobs"."""
    first, second = [*WORD.findall(docstring.split("\n")[0]), "", ""][:2]
    return first.lower() in VERBS and second != "of"


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the comments. Consecutive lines with only a comment are one comment."""
    line, position = 1, 0
    first, block, last = 0, "", -1
    for match in LEXER.finditer(text):
        comment = (match["comment"] or "").lstrip("#: ").strip()
        if not comment or DIRECTIVE.match(comment):
            continue
        line += text.count("\n", position, match.start())
        position = match.start()
        is_alone = not text[text.rfind("\n", 0, position) + 1 : position].strip()
        if is_alone and line == last + 1:
            block += "\n" + comment
        else:
            yield first, block
            first, block = line, comment
        last = line if is_alone else -1
    yield first, block


def find_in_markdown(path: str, text: str) -> Iterator[Finding]:
    """Find rejected words and long sentences outside code, tables and lists of links."""
    text = FENCED.sub(blank, text)
    yield from find_words(path, LINK.sub(lambda link: link[1], text))
    prose = NOT_SENTENCES.sub(blank, CODE.sub(lambda code: "c" + blank(code)[1:], text))
    for paragraph in PARAGRAPH.finditer(prose):
        n_linked = sum(len(WORD.findall(label)) for label in LINK.findall(paragraph.group()))
        if 2 * n_linked > len(WORD.findall(LINK.sub(r"\1", paragraph.group()))):
            continue
        for sentence in SENTENCE.finditer(paragraph.group()):
            n_words = len(WORD.findall(LINK.sub(r"\1", sentence.group())))
            if n_words > MAX_WORDS:
                line = 1 + prose.count("\n", 0, paragraph.start() + sentence.start())
                start = " ".join(text.split("\n")[line - 1].split())
                yield Finding(path, line, "long", f"{n_words} words: {start}")


def find_in_openapi(path: str, text: str) -> Iterator[Finding]:
    """Find rejected words in descriptions and summaries."""
    for line, row in enumerate(text.split("\n"), 1):
        if match := DESCRIPTION.match(row):
            yield from find_words(path, json.loads(match.group(1)).replace("\n", " "), line)


def find(path: str, text: str) -> Iterator[Finding]:
    """Find what breaks a rule in one file, by its kind."""
    if path.endswith(".py"):
        yield from find_in_python(path, text)
    elif path.endswith(".md"):
        yield from find_in_markdown(path, text)
    elif path.endswith(".html"):
        yield from find_words(path, NOT_HTML_TEXT.sub(blank, text))
    else:
        yield from find_in_openapi(path, text)


def check(texts: dict[str, str]) -> list[Finding]:
    """Return the findings in texts given by path. Missing verbs count in folders with too few of them."""
    found = sorted(finding for path, text in texts.items() for finding in find(path, text))
    verbs = Counter(finding.folder for finding in found if finding.rule == "verb")
    functions = verbs + Counter(finding.folder for finding in found if finding.rule == "no verb")
    few = {folder for folder, n in functions.items() if verbs[folder] < LEAST_VERBS * n}
    kept = (each for each in found if each.rule != "verb" and (each.rule != "no verb" or each.folder in few))
    return [each._replace(rule="verb") if each.rule == "no verb" else each for each in kept]


def main() -> int:
    """Print the findings, and return 1 if there are any."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", *READ], check=True, capture_output=True, text=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name and Path(name).is_file()]
    found = check({path.as_posix(): path.read_text(encoding="utf-8") for path in paths})
    for each in found:
        sys.stdout.write(f"{each.path}:{each.line}: {each.rule}: {each.text[:100]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
