"""List the changes of an OpenAPI document that break clients: `python tools/breaking.py OLD NEW`.

The direction decides. A request may not get stricter: no new required member, no narrower range. A response may not get
looser: no removed member, no wider range. A new enum value or union member in a response is wider, because generated
clients reject unknown values. A new member of a response, a new optional member or parameter, a new operation and a new
error status (4xx, 5xx) are additions.

Each breaking change is printed on a line. The exit status is 0 if nothing breaks, else 1. A greater minor version
before 1.0, and a greater major version from 1.0 on, may break clients. The status is then 0 if the newest section of
CHANGELOG.md has the heading `### Incompatible`.
"""

import json
import math
import operator
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMITTED = "openapi/openapi.json"
HEADING = "### Incompatible"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
EXACT = ("pattern", "format", "contentEncoding", "uniqueItems", "multipleOf", "x-decimals")

Json = dict[str, Any]


class Comparison:
    """Comparison of two OpenAPI documents."""

    def __init__(self, old: Json, new: Json) -> None:
        self.old, self.new = old, new
        self._under_way: set[tuple[int, int, bool]] = set()

    def changes(self) -> Iterator[str]:
        """Yield each breaking change with its place."""
        for path, methods in self.old["paths"].items():
            for method in METHODS:
                if method not in methods:
                    continue
                before, after = methods[method], self.new["paths"].get(path, {}).get(method)
                at = f"{method.upper()} {path}"
                if after is None:
                    yield f"{at}: the operation was removed"
                else:
                    yield from self._operation(before, after, at)

    def _operation(self, old: Json, new: Json, at: str) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield f"{at}: its operationId was {old.get('operationId')} and is {new.get('operationId')}"
        if old.get("tags") != new.get("tags"):
            yield f"{at}: its tag changed"
        yield from self._security(old, new, at)
        yield from self._parameters(old, new, at)
        yield from self._body(old.get("requestBody"), new.get("requestBody"), at)
        for status, response in old.get("responses", {}).items():
            after = new.get("responses", {}).get(status)
            if after is None:
                yield f"{at}: the response {status} was removed"
            else:
                yield from self._response(self._of(self.old, response), self._of(self.new, after), f"{at} {status}")
        for status in new.get("responses", {}).keys() - old.get("responses", {}).keys():
            if not status.startswith(("4", "5")):
                yield f"{at}: may now respond {status}"

    def _security(self, old: Json, new: Json, at: str) -> Iterator[str]:
        """Check that each old security requirement satisfies a new one."""
        before = old.get("security", self.old.get("security")) or [{}]
        after = new.get("security", self.new.get("security")) or [{}]
        for way in before:
            if not any(_is_satisfied(need, way) for need in after):
                yield f"{at}: needs more than {' and '.join(way) or 'nothing'}"
        schemes = [document.get("components", {}).get("securitySchemes", {}) for document in (self.old, self.new)]
        for name in {name for way in before for name in way}:
            kinds = [{k: v for k, v in scheme.get(name, {}).items() if k != "description"} for scheme in schemes]
            if kinds[0] != kinds[1]:
                yield f"{at}: the security scheme {name} changed"

    def _parameters(self, old: Json, new: Json, at: str) -> Iterator[str]:
        before, after = (
            {(one["in"], one["name"]): one for one in (self._of(document, each) for each in side.get("parameters", ()))}
            for document, side in ((self.old, old), (self.new, new))
        )
        for place, parameter in before.items():
            where = f"{at}: the {place[0]} parameter {place[1]}"
            if place not in after:
                yield f"{where} is gone"
                continue
            if after[place].get("required", False) and not parameter.get("required", False):
                yield f"{where} is now required"
            yield from self._schema(parameter.get("schema", {}), after[place].get("schema", {}), where, sent=True)
        for place in after.keys() - before.keys():
            if after[place].get("required", False):
                yield f"{at}: the {place[0]} parameter {place[1]} is new and required"

    def _body(self, old: Json | None, new: Json | None, at: str) -> Iterator[str]:
        old, new = self._of(self.old, old or {}), self._of(self.new, new or {})
        if new.get("required", False) and not old.get("required", False):
            yield f"{at}: a body is now required"
        for kind, content in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{at}: a body of {kind} is no longer taken"
            else:
                after = new["content"][kind]
                yield from self._schema(content.get("schema", {}), after.get("schema", {}), f"{at} body", sent=True)

    def _response(self, old: Json, new: Json, at: str) -> Iterator[str]:
        for kind, content in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{at}: {kind} is no longer answered"
            else:
                after = new["content"][kind]
                yield from self._schema(content.get("schema", {}), after.get("schema", {}), at, sent=False)
        for kind in new.get("content", {}).keys() - old.get("content", {}).keys():
            yield f"{at}: may now be {kind}"
        for name in old.get("headers", {}).keys() - new.get("headers", {}).keys():
            yield f"{at}: the header {name} is gone"

    # ---- schemas ----

    def _schema(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        """Compare two schemas. If sent, old values must fit the new schema; else new values must fit the old one."""
        old, new = self._of(self.old, old), self._of(self.new, new)
        pair = (id(old), id(new), sent)
        if pair in self._under_way:  # a recursive schema
            return
        self._under_way.add(pair)
        try:
            yield from self._branches(old, new, at, sent=sent)
        finally:
            self._under_way.discard(pair)

    def _branches(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        before, after = self._union(self.old, old), self._union(self.new, new)
        if len(before) == 1 and len(after) == 1:
            yield from self._alike(before[0], after[0], at, sent=sent)
            return
        tag = self._tag(self.old, old)
        if tag != self._tag(self.new, new):
            yield f"{at}: the discriminator changed"
        # each branch of the producer needs a branch of the consumer that accepts it
        produced, accepted = (before, after) if sent else (after, before)
        for branch in produced:
            tries = []
            for candidate in accepted:
                pair = (branch, candidate) if sent else (candidate, branch)
                tries.append(list(self._schema(*pair, at, sent=sent)))
            if not any(not found for found in tries):
                closest = min(tries, key=len, default=[])
                name = _name(branch, tag)
                if len(accepted) == 1 or any(_name(one, tag) == name for one in accepted):
                    same = [found for one, found in zip(accepted, tries, strict=True) if _name(one, tag) == name]
                    yield from (same[0] if same else closest)
                else:
                    yield f"{at}: the kind {name} is {'gone' if sent else 'new'}"

    def _union(self, document: Json, schema: Json) -> list[Json]:
        """Return the branches of a union. A list of types is a union too."""
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return [kind for branch in schema[word] for kind in self._union(document, self._of(document, branch))]
        if isinstance(schema.get("type"), list):
            return [schema | {"type": kind} for kind in schema["type"]]
        return [schema]

    def _tag(self, document: Json, schema: Json) -> str | None:
        """Return the discriminator of a union or of a union within it."""
        if discriminator := schema.get("discriminator"):
            return str(discriminator["propertyName"])
        branches = [self._of(document, one) for word in ("oneOf", "anyOf") for one in schema.get(word, ())]
        return next((tag for one in branches if (tag := self._tag(document, one))), None)

    def _alike(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        produced, accepted = (old, new) if sent else (new, old)  # each produced value must be accepted
        if not _is_type_within(produced.get("type"), accepted.get("type")):
            yield f"{at}: the type was {old.get('type')} and is {new.get('type')}"
            return
        values, allowed = _values(produced), _values(accepted)
        if allowed is not None and (values is None or any(value not in allowed for value in values)):
            odd = "anything" if values is None else ", ".join(json.dumps(one) for one in values if one not in allowed)
            yield f"{at}: {odd} {'is no longer taken' if sent else 'may now be answered'}"
        is_listed = values is not None  # the list makes bounds irrelevant
        change = "narrower than it was" if sent else "wider than it was"
        for words, is_beyond, unbounded in ((LOWER, operator.lt, -math.inf), (UPPER, operator.gt, math.inf)):
            for word in words:
                if word in accepted and not is_listed and is_beyond(produced.get(word, unbounded), accepted[word]):
                    yield f"{at}: {word} is {change}"
        for word in EXACT:
            if word in accepted and not is_listed and produced.get(word) != accepted[word]:
                yield f"{at}: {word} was {old.get(word)!r} and is {new.get(word)!r}"
        if "items" in accepted:
            yield from self._schema(old.get("items", {}), new.get("items", {}), f"{at}[]", sent=sent)
        yield from self._members(old, new, at, sent=sent)

    def _members(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in before.keys() | after.keys():
            where = f"{at}.{name}"
            if name in before and name in after:
                yield from self._schema(before[name], after[name], where, sent=sent)
            elif name in before:
                yield f"{where}: is gone"
            elif sent and name in new.get("required", ()):
                yield f"{where}: is new and required"
        required, was_required = set(new.get("required", ())), set(old.get("required", ()))
        if sent:
            yield from (f"{at}.{name}: is now required" for name in sorted((required - was_required) & before.keys()))
        else:
            yield from (f"{at}.{name}: may now be missing" for name in sorted((was_required - required) & after.keys()))
        more, was_more = new.get("additionalProperties", True), old.get("additionalProperties", True)
        if isinstance(more, dict) and isinstance(was_more, dict):
            yield from self._schema(was_more, more, f"{at}.*", sent=sent)
        elif sent and more is not True and more != was_more:
            yield f"{at}: takes fewer unknown members than it did"
        elif not sent and isinstance(was_more, dict) and more is not False:
            yield f"{at}.*: its members are no longer described"

    @staticmethod
    def _of(document: Json, part: Json) -> Json:
        """Return a part of a document with its reference resolved."""
        while "$ref" in part:
            found: Any = document
            for step in part["$ref"][2:].split("/"):
                found = found[step.replace("~1", "/").replace("~0", "~")]
            part = found
        return part


def _is_satisfied(need: Json, way: Json) -> bool:
    """Return whether the old requirement `way` satisfies the new requirement `need`."""
    return all(name in way and set(scopes) <= set(way[name]) for name, scopes in need.items())


def _values(schema: Json) -> list[Any] | None:
    """Return the values of an enum or a constant, or None if the values are unlimited."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _is_type_within(kind: str | None, other: str | None) -> bool:
    return other is None or kind == other or (kind == "integer" and other == "number")


def _name(schema: Json, tag: str | None) -> str:
    """Return the name of a branch of a union."""
    member = schema.get("properties", {}).get(tag, {}) if tag else {}
    return str(member.get("const", schema.get("type", "unnamed")))


def last_release(root: Path) -> str | None:
    """Return the newest tag `v*` before this commit, or None before the first release."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def allows_breaking(old: Json, new: Json) -> bool:
    """Return whether the version of a document may break clients of an earlier one."""
    before, after = ([int(part) for part in each["info"]["version"].split(".")[:2]] for each in (old, new))
    n_parts = 1 if before[0] else 2
    return after[:n_parts] > before[:n_parts]


def is_announced(changelog: str) -> bool:
    """Return whether the newest section of the changelog lists incompatible changes."""
    return HEADING in changelog.split("\n## ")[1].splitlines()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> int:
    """Compare two files; without arguments, the document of the last release and the committed one."""
    root = Path(__file__).parents[1]
    if len(arguments) == 2:
        texts = [Path(argument).read_text() for argument in arguments]
        what = " and ".join(arguments)
    elif not arguments:
        release = last_release(root)
        if release is None:
            _print("no release (tag v*) to compare with; nothing was checked")
            return 0
        shown = ["git", "show", f"{release}:{COMMITTED}"]
        texts = [
            subprocess.run(shown, cwd=root, capture_output=True, text=True, check=True).stdout,
            (root / COMMITTED).read_text(),
        ]
        what = f"{release} and this tree"
    else:
        sys.stderr.write("usage: breaking.py [OLD NEW]\n")
        return 2
    old, new = map(json.loads, texts)
    found = list(dict.fromkeys(Comparison(old, new).changes()))
    for change in found:
        _print(change)
    _print(f"{what}: {len(found) or 'no'} breaking change{'' if len(found) == 1 else 's'}")
    if not found or not allows_breaking(old, new):
        return 1 if found else 0
    _print(f"version {new['info']['version']} may break clients, if CHANGELOG.md lists the changes below {HEADING}")
    return 0 if is_announced((root / "CHANGELOG.md").read_text()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
