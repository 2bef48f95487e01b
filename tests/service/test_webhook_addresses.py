"""Where webhooks may lead: nowhere private, however it is written or resolved."""

from ipaddress import ip_address, ip_network

import pytest

from models.webhook import MAX_URL
from service.webhook_addresses import BadUrl, NoSuchAddress, checked, is_allowed, parse

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
BAD = [
    "",
    " ",
    "example.com",
    "//example.com/",
    "http://example.com/",
    "ftp://example.com/",
    "file:" + "///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "https:///x",
    "https://",
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://@example.com/",
    "https://example.com/#fragment",
    "https://example.com#",
    "https://example.com/a b",
    "https://example.com/\n",
    "https://example.com/\r\nHost: x",
    "https://exa\tmple.com/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com/é",
    "https://bücher.example/",
    "https://１２７.0.0.1/",
    "https://example。com/",
    "https://localhost/",
    "https://localhost:8443/",
    "https://a.localhost/",
    "https://intranet/",
    "https://example.com./",
    "https://.example.com/",
    "https://a..example.com/",
    "https://-a.example.com/",
    "https://a_b.example.com/",
    "https://*.example.com/",
    "https://%31%32%37.0.0.1/",
    "https://" + "a" * 64 + ".example.com/",
    "https://" + "a." * 127 + "com/",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.01/",
    "https://example.0x1/",
    "https://0/",
    "https://0.0.0.0/",
    "https://10.1.2.3/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://100.64.0.1/",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://198.18.0.1/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[::]/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:1::1]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fd00:ec2::254]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[::1",
    "https://[v1.x]/",
    "https://[1.1.1.1]/",
    "https://example.com:/",
    "https://example.com:0/",
    "https://example.com:22/",
    "https://example.com:25/",
    "https://example.com:80/",
    "https://example.com:1023/",
    "https://example.com:65536/",
    "https://example.com:-1/",
    "https://example.com:+443/",
    "https://example.com:4 43/",
    "https://example.com:٤٤٣/",
    "https://example.com/" + "x" * MAX_URL,
]


class TestAUrl:
    @pytest.mark.parametrize(("url", "host", "port", "path"), GOOD, ids=range(len(GOOD)))
    def test_that_is_public_is_taken_apart(self, url: str, host: str, port: int, path: str) -> None:
        target = parse(url, NONE)
        assert (target.scheme, target.host, target.port, target.path) == ("https", host, port, path)

    @pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
    def test_that_is_not_is_refused_without_being_repeated(self, url: str) -> None:
        with pytest.raises(BadUrl) as refused:
            parse(url, NONE)
        assert len(url.strip()) < 9 or url.strip() not in str(refused.value)

    def test_may_be_plain_and_without_a_dot_where_the_operator_allows_a_network(self) -> None:
        for url in ("http://receiver:8080/", "http://localhost:8080/", "http://127.0.0.1:8080/x"):
            with pytest.raises(BadUrl):
                parse(url, NONE)
            assert parse(url, LOOPBACK).scheme == "http"
        for url in ("http://1.1.1.1/", "https://10.0.0.1/", "http://127.0.0.1:22/"):
            with pytest.raises(BadUrl):
                parse(url, LOOPBACK)

    def test_goes_to_an_address_with_its_own_name_in_the_header(self) -> None:
        target = parse("https://hooks.example.com:8443/x?y", NONE)
        assert target.url_of(ip_address("1.1.1.1")) == "https://1.1.1.1:8443/x?y"
        assert target.url_of(ip_address("2606:4700::1")) == "https://[2606:4700::1]:8443/x?y"
        assert target.authority == "hooks.example.com:8443"
        assert parse("https://[2606:4700::1]/", NONE).authority == "[2606:4700::1]"


class TestAnAddress:
    @pytest.mark.parametrize(
        "text",
        [
            *("0.1.2.3", "10.255.255.255", "100.127.255.255", "127.255.255.255", "169.254.0.1", "172.31.255.255"),
            *("192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.255.255", "198.19.255.255", "198.51.100.1"),
            *("203.0.113.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
            *("::", "::1", "::8.8.8.8", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1"),
            *("2001::1", "2001:10::1", "2001:db8::1", "2002:a00:1::", "2002:7f00:1::1", "3fff::1", "5f00::1"),
            *("fc00::1", "fdff::1", "fe80::1", "fec0::1", "ff0e::1"),
        ],
    )
    def test_that_is_not_public_is_not_reached(self, text: str) -> None:
        assert not is_allowed(ip_address(text), NONE)

    @pytest.mark.parametrize(
        "text",
        [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ],
    )
    def test_that_is_public_is(self, text: str) -> None:
        assert is_allowed(ip_address(text), NONE)

    def test_of_a_network_the_operator_names_is_reached_and_its_neighbours_are_not(self) -> None:
        for text in ("127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
            assert is_allowed(ip_address(text), LOOPBACK)
        for text in ("::1", "126.255.255.255.1"[:15], "10.0.0.1", "169.254.169.254"):
            assert is_allowed(ip_address(text), LOOPBACK) == (text == "126.255.255.255")


class TestWhatANameResolvesTo:
    TARGET = parse("https://hooks.example.com/", NONE)

    def test_is_taken_in_order_and_once(self) -> None:
        found = checked(self.TARGET, ["1.1.1.1", "8.8.8.8", "1.1.1.1", "2606:4700::1"], NONE)
        assert [str(each) for each in found] == ["1.1.1.1", "8.8.8.8", "2606:4700::1"]

    @pytest.mark.parametrize(
        "found",
        [
            [],
            ["127.0.0.1"],
            ["1.1.1.1", "10.0.0.1"],
            ["10.0.0.1", "1.1.1.1"],
            ["fe80::1%eth0"],
            ["x"],
            ["1.1.1.1", "::1"],
        ],
        ids=range(7),
    )
    def test_is_refused_if_one_of_it_is_not_public(self, found: list[str]) -> None:
        with pytest.raises(NoSuchAddress):
            checked(self.TARGET, found, NONE)

    def test_is_refused_of_plain_http_outside_of_the_operators_networks(self) -> None:
        plain = parse("http://receiver.example:8080/", LOOPBACK)
        assert checked(plain, ["127.0.0.1"], LOOPBACK)
        with pytest.raises(NoSuchAddress):
            checked(plain, ["1.1.1.1"], LOOPBACK)
        with pytest.raises(NoSuchAddress):
            checked(plain, ["127.0.0.1", "1.1.1.1"], LOOPBACK)
