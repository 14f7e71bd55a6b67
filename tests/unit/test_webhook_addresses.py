"""Where a webhook may not go, in every spelling that somebody has tried elsewhere."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from payments.exceptions import RefusedUrl
from payments.webhooks import addresses
from payments.webhooks.addresses import AddressBook, LookUpFailed, check, check_form

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]

#: What a URL must not look like, whatever it leads to.
HOSTILE_FORMS = [
    # addresses: dotted, decimal, octal, hexadecimal, short, mixed, with a zone, mapped
    "https://127.0.0.1/",
    "https://93.184.216.34/",
    "https://2130706433/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.1/",
    "https://127.1/",
    "https://0/",
    "https://example.0x7f/",
    "https://[::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::]:8443/",
    # names that are not what they look like
    "https://example.com./",
    "https://localhost./",
    "https://LocalHost/",
    "https://intranet/",
    "https://ex\uff41mple.com/",
    "https://example\u3002com/",
    "https://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/",
    "https://exam_ple.com/",
    "https://-example.com/",
    "https://example..com/",
    "https://.example.com/",
    "https://%6c%6f%63alhost/",
    # a user, which some parsers take for the host
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com:443@127.0.0.1/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com#@127.0.0.1/",
    "https://example.com/#fragment",
    # ports
    "https://example.com:0/",
    "https://example.com:22/",
    "https://example.com:25/",
    "https://example.com:1023/",
    "https://example.com:65536/",
    "https://example.com:99999/",
    "https://example.com:/",
    "https://example.com:+443/",
    # schemes, blanks, lines
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/_x",
    "javascript:alert(1)",
    "//example.com/",
    "https:/example.com/",
    "https:example.com",
    "HTTPS://example.com/",
    " https://example.com/",
    "https://example.com/ ",
    "https://example.com/\r\nX: y",
    "https://example.com/\n",
    "https://example.com/\x00",
    "https://exam\tple.com/",
    "",
]

#: What a name must not lead to.
HOSTILE_ADDRESSES = [
    "0.0.0.0",  # noqa: S104
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",  # carrier-grade NAT
    "100.100.100.200",  # a metadata service
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # a host agent, in a range that is public
    "169.254.169.254",  # the metadata service
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # a metadata service
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:93.184.216.34",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",  # Teredo
    "2001:0:7f00:1::",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4
    "2002:a9fe:a9fe::",
    "3fff::1",
    "4000::1",
    "fc00::1",
    "fd00:ec2::254",  # a metadata service
    "fe80::1",
    "fe80::1%eth0",
    "2606:2800::1%eth0",
    "fec0::1",
    "ff02::1",
    "not an address",
]


@pytest.fixture(autouse=True)
def _production(settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {}


def book(*found: str) -> AddressBook:
    return AddressBook(lambda host, port: list(found))


@pytest.mark.parametrize("url", HOSTILE_FORMS)
def test_a_url_of_a_hostile_form_is_refused_before_anything_is_looked_up(url: str) -> None:
    def never(host: str, port: int) -> list[str]:
        raise AssertionError(f"{host} was looked up")

    with pytest.raises(RefusedUrl):
        check(url, AddressBook(never))


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_a_name_that_leads_to_a_hostile_address_is_refused(address: str) -> None:
    with pytest.raises(RefusedUrl, match="not public") as refused:
        check("https://hooks.example.com/", book(address))
    assert address not in str(refused.value)


@pytest.mark.parametrize("address", [*PUBLIC, "64:ff9b::93.184.216.34"])
def test_a_name_that_leads_to_the_internet_is_allowed(address: str) -> None:
    check("https://hooks.example.com/", book(address))
    assert book(address).addresses("hooks.example.com", 443) == [address]


def test_whoever_writes_a_url_waits_for_no_look_up_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    begun, answer = threading.Event(), threading.Event()

    def slow(host: str, port: int) -> list[str]:
        asked.append(host)
        begun.set()
        assert answer.wait(30)
        return ["10.0.0.1"]

    monkeypatch.setattr(addresses, "look_up", slow)
    ends: list[Exception] = []

    def first() -> None:
        try:
            check("https://slow.example/")
        except RefusedUrl as refused:
            ends.append(refused)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(30)
    # No place, and no wait for one: it passes, and its deliveries will look.
    check("https://other.example/")
    answer.set()
    thread.join()
    assert asked == ["slow.example"]
    assert len(ends) == 1


def test_a_name_without_an_address_is_a_look_up_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(*args: Any, **options: Any) -> Any:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(LookUpFailed):
        AddressBook().addresses("nobody.example", 443)


def test_one_hostile_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(RefusedUrl):
        check("https://hooks.example.com/", book(*PUBLIC, "10.0.0.1"))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://example.com", "example.com", 443),
        ("https://example.com/", "example.com", 443),
        ("https://example.com?a=b", "example.com", 443),
        ("https://EXAMPLE.com:8443/a/b?c=d@e:f", "EXAMPLE.com", 8443),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://a.b.c.d.e0:65535/~x", "a.b.c.d.e0", 65535),
        ("https://10.0.0.1.example.com:1024/", "10.0.0.1.example.com", 1024),
    ],
)
def test_a_url_of_the_right_form_is_read_as_it_will_be_called(
    url: str, host: str, port: int
) -> None:
    assert check_form(url) == (host, port)


@pytest.mark.parametrize("url", ["http://example.com/", "https://localhost/"])
def test_http_and_this_machine_are_for_the_demo_only(url: str, settings: Any) -> None:
    with pytest.raises(RefusedUrl):
        check(url, book(PUBLIC[0]))
    settings.PAYMENTS_WEBHOOKS = {"ALLOW_LOOPBACK": True}
    check(url, book("127.0.0.1"))
    check(url, book("::1"))


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "0.1.2.3", "fe80::1"])
def test_the_demo_may_call_this_machine_and_not_its_neighbours(address: str, settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {"ALLOW_LOOPBACK": True}
    with pytest.raises(RefusedUrl):
        check("http://hooks.example.com/", book(address))


def test_a_name_without_an_address_passes_and_cannot_be_called() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    for empty in (AddressBook(unknown), book()):
        check("https://hooks.example.com/", empty)
        with pytest.raises(OSError, match=r"not known|no address"):
            empty.addresses("hooks.example.com", 443)


def test_a_name_that_cannot_be_one_has_no_address() -> None:
    with pytest.raises(LookUpFailed):
        addresses.look_up(f"{'x' * 64}.example.com", 443)


def test_a_look_up_that_hangs_is_given_up() -> None:
    over = threading.Event()

    def hang(host: str, port: int) -> list[str]:
        over.wait(30)
        return PUBLIC

    hanging = AddressBook(hang, seconds=0.01)
    with pytest.raises(LookUpFailed, match="in time"):
        hanging.addresses("hooks.example.com", 443)
    over.set()


def test_look_ups_that_hang_are_bounded_in_number() -> None:
    over = threading.Event()

    def hang(host: str, port: int) -> list[str]:
        over.wait(30)
        return PUBLIC

    hanging = AddressBook(hang, seconds=0.01, room=threading.Semaphore(1))
    with pytest.raises(LookUpFailed, match="in time"):
        hanging.addresses("hooks.example.com", 443)
    with pytest.raises(LookUpFailed, match="too many"):
        hanging.addresses("hooks.example.com", 443)
    over.set()
