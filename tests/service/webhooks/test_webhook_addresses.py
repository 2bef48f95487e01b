"""Webhooks cannot reach private addresses, in any notation or by any name."""

from ipaddress import ip_address, ip_network

import pytest

from models.tables.webhooks import MAX_URL
from service.webhooks.addresses import AddressNotAllowed, BadUrl, check_addresses, is_allowed, parse

LOOPBACK = (ip_network("127.0.0.0/8"),)
NONE = ()

GOOD = [
    ("https://example.com", "example.com", 443, "/"),
    ("https://EXAMPLE.com/a/b?c=d", "example.com", 443, "/a/b?c=d"),
    ("https://hooks.example.com:8443/x", "hooks.example.com", 8443, "/x"),
    ("https://example.com:443?x", "example.com", 443, "/?x"),
    ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/"),
    ("https://1.1.1.1/", "1.1.1.1", 443, "/"),
    ("https://[2606:4700:4700::1111]:1024/", "2606:4700:4700::1111", 1024, "/"),
    ("https://a-1.b2.example/%20", "a-1.b2.example", 443, "/%20"),
    ("https://example.com//x", "example.com", 443, "//x"),
]
PORTS = ["", "0", "22", "25", "80", "1023", "65536", "-1", "+443", "4 43", "٤٤٣"]
BAD_URLS = [
    *("example.com", "//example.com/", "http://example.com/", "ftp://example.com/", "file:" + "///etc/passwd"),
    *("gopher://example.com/", "javascript:alert(1)", "https:///x", "https://", "https://user@example.com/"),
    *("https://user:password@example.com/", "https://example.com@127.0.0.1/", "https://@example.com/"),
    *("https://example.com/#fragment", "https://example.com#", "https://example.com\\@127.0.0.1/"),
    *("https://example.com/é", "https://[::1"),
]
BAD_HOSTS = [
    *("bücher.example", "１２７.0.0.1", "example。com", "localhost", "localhost:8443", "a.localhost", "intranet"),
    *("example.com.", ".example.com", "a..example.com", "-a.example.com", "a_b.example.com", "*.example.com"),
    *("%31%32%37.0.0.1", "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1"),
    *("017700000001", "127.0.0.01", "example.0x1", "0", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),  # noqa: S104
    *("169.254.169.254", "100.64.0.1", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
    *("[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[64:ff9b::7f00:1]"),
    *("[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:1::1]", "[fe80::1]", "[fe80::1%25eth0]", "[fd00:ec2::254]"),
    *("[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[v1.x]", "[1.1.1.1]"),
]
BAD = [
    *("", " ", "https://example.com/a b", "https://example.com/\n", "https://example.com/\r\nHost: x"),
    *("https://exa\tmple.com/", "https://" + "a" * 64 + ".example.com/", "https://" + "a." * 127 + "com/"),
    "https://example.com/" + "x" * MAX_URL,
    *BAD_URLS,
    *(f"https://{host}/" for host in BAD_HOSTS),
    *(f"https://example.com:{port}/" for port in PORTS),
]


class TestUrl:
    @pytest.mark.parametrize(("url", "host", "port", "path"), GOOD, ids=range(len(GOOD)))
    def test_with_a_public_host_is_parsed(self, url: str, host: str, port: int, path: str) -> None:
        target = parse(url, NONE)
        assert (target.scheme, target.host, target.port, target.path) == ("https", host, port, path)

    @pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
    def test_that_is_invalid_is_rejected_and_not_quoted(self, url: str) -> None:
        with pytest.raises(BadUrl) as caught:
            parse(url, NONE)
        assert len(url.strip()) < 9 or url.strip() not in str(caught.value)

    def test_may_use_http_and_a_local_name_if_a_network_is_allowed(self) -> None:
        for url in ("http://receiver:8080/", "http://localhost:8080/", "http://127.0.0.1:8080/x"):
            with pytest.raises(BadUrl):
                parse(url, NONE)
            assert parse(url, LOOPBACK).scheme == "http"
        for url in ("http://1.1.1.1/", "https://10.0.0.1/", "http://127.0.0.1:22/"):
            with pytest.raises(BadUrl):
                parse(url, LOOPBACK)

    def test_with_an_address_keeps_its_host_header(self) -> None:
        target = parse("https://hooks.example.com:8443/x?y", NONE)
        assert target.url_of(ip_address("1.1.1.1")) == "https://1.1.1.1:8443/x?y"
        assert target.url_of(ip_address("2606:4700::1")) == "https://[2606:4700::1]:8443/x?y"
        assert target.authority == "hooks.example.com:8443"
        assert parse("https://[2606:4700::1]/", NONE).authority == "[2606:4700::1]"


PRIVATE = [
    *("0.1.2.3", "10.255.255.255", "100.127.255.255", "127.255.255.255", "169.254.0.1", "172.31.255.255"),
    *("192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.255.255", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16", "::", "::1", "::8.8.8.8"),
    *("::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:10::1", "2001:db8::1"),
    *("2002:a00:1::", "2002:7f00:1::1", "3fff::1", "5f00::1", "fc00::1", "fdff::1", "fe80::1", "fec0::1", "ff0e::1"),
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


class TestAddress:
    def test_that_is_private_is_rejected_and_a_public_one_allowed(self) -> None:
        assert [text for text in PRIVATE if is_allowed(ip_address(text), NONE)] == []
        assert [text for text in PUBLIC if not is_allowed(ip_address(text), NONE)] == []

    def test_in_an_allowed_network_is_allowed_and_its_neighbours_are_not(self) -> None:
        for text in ("127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
            assert is_allowed(ip_address(text), LOOPBACK)
        for text in ("::1", "10.0.0.1", "169.254.169.254", "128.0.0.1"):
            assert is_allowed(ip_address(text), LOOPBACK) == (text == "128.0.0.1")


class TestResolvedAddresses:
    TARGET = parse("https://hooks.example.com/", NONE)

    def test_keep_their_order_without_duplicates(self) -> None:
        found = check_addresses(self.TARGET, ["1.1.1.1", "8.8.8.8", "1.1.1.1", "2606:4700::1"], NONE)
        assert [str(each) for each in found] == ["1.1.1.1", "8.8.8.8", "2606:4700::1"]

    @pytest.mark.parametrize(
        "addresses", ["", "127.0.0.1", "1.1.1.1 10.0.0.1", "10.0.0.1 1.1.1.1", "fe80::1%eth0", "x", "1.1.1.1 ::1"]
    )
    def test_are_rejected_if_one_is_private(self, addresses: str) -> None:
        with pytest.raises(AddressNotAllowed):
            check_addresses(self.TARGET, addresses.split(), NONE)

    def test_of_http_must_lie_in_the_allowed_networks(self) -> None:
        plain = parse("http://receiver.example:8080/", LOOPBACK)
        assert check_addresses(plain, ["127.0.0.1"], LOOPBACK)
        for addresses in (["1.1.1.1"], ["127.0.0.1", "1.1.1.1"]):
            with pytest.raises(AddressNotAllowed):
                check_addresses(plain, addresses, LOOPBACK)
