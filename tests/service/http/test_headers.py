"""Request headers as proxies rewrite them: other case, spaces, ports, weak tags, joined and split fields."""

import secrets
from typing import Any

import httpx
import pytest

from service.http.headers import (
    authority,
    bearer_secret,
    content_codings,
    etag_matches,
    media_type,
    parse_address,
    single,
)
from service.http.problems import BadRequest
from tests.service.api import SQLITE_ONLY, Api, refused

TAG = '"0123abc"'


def scope(name: str, *values: str) -> dict[str, Any]:
    return {"headers": [(name.encode(), value.encode("latin-1")) for value in values]}


class TestParsing:
    @pytest.mark.parametrize(
        ("hop", "address"),
        [
            ("203.0.113.7", "203.0.113.7"),
            (" 203.0.113.7:51432 ", "203.0.113.7"),
            ('"203.0.113.7:1"', "203.0.113.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]:51432", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[::ffff:203.0.113.7]:80", "203.0.113.7"),
            ("203.0.113.7:port", None),
            ("203.0.113.7:123456", None),
            ("[2001:db8::1", None),
            ("unknown", None),
            ("_hidden", None),
            ("", None),
        ],
    )
    def test_of_a_hop_removes_its_port(self, hop: str, address: str | None) -> None:
        found = parse_address(hop)
        assert (found and str(found)) == address

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            (["Application/JSON; Charset=UTF-8"], b"application/json"),
            (['application/json ;x="a,b"'], b"application/json"),
            (["application/json, application/json"], b"application/json"),
            (["application/json", "application/json;charset=utf-8"], b"application/json"),
            (["application/json, text/csv"], b""),
            (["application/json", "text/csv"], b""),
            ([], b""),
        ],
    )
    def test_of_a_media_type_ignores_case_parameters_and_repetition(self, values: list[str], kind: bytes) -> None:
        assert media_type(scope("content-type", *values)) == kind

    @pytest.mark.parametrize(
        ("values", "codings"),
        [
            (["GZIP"], [b"gzip"]),
            (["x-gzip"], [b"gzip"]),
            (["identity, gzip"], [b"gzip"]),
            (["gzip", "identity"], [b"gzip"]),
            (["", ","], []),
            (["gzip,br"], [b"gzip", b"br"]),
            (["gzip", "gzip"], [b"gzip", b"gzip"]),
        ],
    )
    def test_of_content_codings_drops_identity(self, values: list[str], codings: list[bytes]) -> None:
        assert content_codings(scope("content-encoding", *values)) == codings

    @pytest.mark.parametrize(
        "given",
        [
            TAG,
            f"W/{TAG}",
            f'"x", W/{TAG}',
            f'"x",{TAG} ,"y"',
            "*",
            TAG[:-1] + '-gzip"',
            f'W/{TAG[:-1]}--gzip"',
            TAG[:-1] + ';br"',
        ],
    )
    def test_of_entity_tags_accepts_the_marks_of_compression(self, given: str) -> None:
        assert etag_matches(TAG, given)

    @pytest.mark.parametrize("given", ["", '"other"', TAG[:-2] + '"', TAG[:-1] + '-other"', '"gzip"'])
    def test_of_entity_tags_rejects_others(self, given: str) -> None:
        assert not etag_matches(TAG, given)

    @pytest.mark.parametrize("given", [b"Bearer k", b"bearer k", b"BEARER   k ", b"Bearer\tk"])
    def test_of_the_key_ignores_case_and_spaces(self, given: bytes) -> None:
        assert bearer_secret(given) == "k"

    def test_of_the_key_rejects_joined_keys_and_other_schemes(self) -> None:
        assert [bearer_secret(given) for given in (None, b"", b"Basic k", b"Bearer", b"Bearer ")] == [None] * 5
        with pytest.raises(BadRequest):
            bearer_secret(b"Bearer k, Bearer k")

    def test_of_a_single_value_joins_repetitions(self) -> None:
        for values in (["a"], ["a", "a"], ["a, a"], ["a,a"], [" a"]):
            assert single(scope("x", *values), b"x") == "a"
        assert single(scope("x", "a,b"), b"x") == "a,b"
        assert single(scope("x"), b"x") is None
        with pytest.raises(BadRequest):
            single(scope("x", "a", "b"), b"x")

    def test_of_an_authority_knows_default_ports(self) -> None:
        same = ("a.example", "A.Example:443", "a.example.:443", " a.example ")
        assert {authority("https", host) for host in same} == {("a.example", 443)}
        assert authority("http", "a.example") == ("a.example", 80) != authority("https", "a.example")
        assert authority("https", "a.example:x") is None


@SQLITE_ONLY
class TestRequests:
    def test_with_rewritten_headers_are_the_same_requests(self, api: Api) -> None:
        key = secrets.token_hex(8)
        body = b'{"name":"d","trust":"local","epsilon":1,"features":[{"name":"x","lower":0,"upper":1}]}'
        plain = [("content-type", "application/json"), ("idempotency-key", key)]
        first = api.http.post("/v1/datasets", content=body, headers=[*plain, ("authorization", f"Bearer {api.secret}")])
        assert first.status_code == 201, first.text
        rewritten = [
            ("Content-Type", "Application/JSON; charset=UTF-8"),
            ("content-type", "application/json"),
            ("Idempotency-Key", f"{key}, {key}"),
            ("Content-Encoding", "Identity"),
            ("Authorization", f"bearer  {api.secret}"),
        ]
        again = api.http.post("/v1/datasets", content=body, headers=rewritten)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        assert again.content == first.content

    def test_with_contradictions_are_refused(self, api: Api) -> None:
        for name, values in (
            ("idempotency-key", ("a", "b")),
            ("authorization", (f"Bearer {api.secret}", "Bearer sfk_other")),
            ("authorization", (f"Bearer {api.secret}, Bearer sfk_other",)),
        ):
            fields = [(name, value) for value in values]
            fields += [] if name == "authorization" else [("authorization", f"Bearer {api.secret}")]
            refused(api.http.post("/v1/datasets", json={}, headers=fields), 400, "bad_request")
        sent: list[tuple[str, str]] = [("content-type", "text/csv"), ("authorization", f"Bearer {api.secret}")]
        both = api.http.post("/v1/datasets", content=b"{}", headers=[("content-type", "application/json"), *sent])
        refused(both, 415, "unsupported_media_type")

    def test_with_weak_tags_in_several_fields_are_conditional(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        api.round(dataset_id)
        path = f"/v1/datasets/{dataset_id}/round"
        key = ("authorization", f"Bearer {api.secret}")
        tag = api.http.get(path, headers=[key]).headers["etag"]
        marked = f'W/"{tag.strip(chr(34))}-gzip"'
        for fields in ([tag], [f"W/{tag}"], ['"x"', tag], [f'"x" , {marked}']):
            response: httpx.Response = api.http.get(path, headers=[key, *(("if-none-match", each) for each in fields)])
            assert response.status_code == 304, fields
        change = {"name": "other"}
        etag = api.get(f"/datasets/{dataset_id}").headers["etag"]
        stale = api.http.patch(f"/v1/datasets/{dataset_id}", json=change, headers=[key, ("if-match", '"x"')])
        refused(stale, 412, "precondition_failed")
        fields = [key, ("if-match", '"x"'), ("if-match", f"W/{etag}")]
        assert api.http.patch(f"/v1/datasets/{dataset_id}", json=change, headers=fields).status_code == 200
