"""Messages of errors: each states a fault, a requirement or a remedy, and asserts no rule as if it were kept."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "sdk/python/sfumato", "service", "models", "clustering", "workers", "runtime", "connections", "shuffler",
)  # fmt: skip
CHECKS = {"require", "InvalidSpec", "InvalidPoint", "InvalidEpsilon", "InvalidDelta", "RoundRefused", "ValueError"}
CHECKS |= {"PydanticCustomError", "ValidationFailed", "Rejection"}
RULE = re.compile(r"\b(lies?|has|have|is|are|differ|states?|needs?|takes|fits|goes|belongs?)\b")
FAULT = re.compile(
    r"\b(must|may|cannot|not|no|nothing|neither|unknown|unexpected|missing|got|another|other|wrong|invalid|several|than"
    r"|too|out of range|unbounded|independent|changed|twice|still|different|damaged|inconsistent|depends?|gives?|takes"
    r"|needs|none|empty|required|accepts?|costs?|used|use|pass|reveals|truncated|incomplete|negative|outside|only"
    r"|already|gone|few)\b"
)
REMEDY = re.compile(r"[:;,.] [\w…]")


def text_of(node: ast.expr) -> str:
    """Return the text of an expression. A part that is computed is an ellipsis."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return "…"


def texts_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a node that are messages of an error."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from (*node.exc.args, *(keyword.value for keyword in node.exc.keywords))
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CHECKS:
        yield from node.args
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "message":
                yield value
    elif isinstance(node, ast.Assign) and re.fullmatch("message|reason|wrong", ast.unparse(node.targets[0])):
        yield node.value


def messages() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each message."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for each in texts_in(node):
                    if " " in (text := text_of(each)):
                        yield f"{path.relative_to(ROOT)}:{each.lineno}", text


def is_rule(text: str) -> bool:
    """Return whether a text asserts a rule, and names neither a fault nor a remedy."""
    return bool(RULE.search(text)) and not FAULT.search(text) and not REMEDY.search(text)


def test_no_message_asserts_the_rule() -> None:
    found = set(messages())
    assert len(found) > 500
    assert sorted(each for each in found if is_rule(each[1])) == []


def test_an_asserted_rule_is_found() -> None:
    assert is_rule("a source has 1 to 64 letters")
    assert is_rule("target goes with expected_reports")
    assert not is_rule("feature names must be unique: 'x' occurs twice")
    assert not is_rule("the Arrow batches are compressed: write them without compression")
