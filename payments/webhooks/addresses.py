"""Where a webhook may go: to names that anybody could call, and nowhere inside.

A merchant chooses the URL and we call it from inside our network, so a URL is a way in (server-side
request forgery). Two rules keep it shut:

* the form: https, a host *name*, no user, no fragment, a port of a web server. An address is
  refused in every spelling (``2130706433``, ``0x7f.1``, ``[::1]``), because the name of a
  certificate is a name;
* what the name means: every address that it resolves to has to be public. The addresses that were
  checked are the ones that are connected to, so a name that changes its mind in between changes
  nothing.

Both are applied when an endpoint is written and again at each delivery. Where
``ALLOW_LOOPBACK`` is on, in the demo, http and this machine are allowed as well.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterable

from payments.exceptions import RefusedUrl
from payments.webhooks import conf

#: Longest look-up of a name, in seconds. The system's own bound is minutes.
LOOK_UP_SECONDS = 3.0
#: Look-ups at once in a process: each that hangs keeps a thread until the system gives it up.
LOOK_UPS = 16

_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z\-]{0,61}[0-9A-Za-z])?"
# A last label that begins with a letter: otherwise inet_aton would read 0x7f.1 as an address.
_NAME = rf"(?:localhost|(?:{_LABEL}\.)+[A-Za-z](?:[0-9A-Za-z\-]{{0,61}}[0-9A-Za-z])?)"
# 80, 443 and 1024 to 65535: what listens on the others is no web server, and takes a POST for
# commands of its own.
_PORT = (
    r"(?:80|443|102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-5][0-9]{4}|6[0-4][0-9]{3}"
    r"|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
#: The form of a URL. Visible ASCII after the host: other text would be called as we encode it.
URL = re.compile(rf"\A(https?)://({_NAME})(?::({_PORT}))?(?:[/?][!-\"$-~]*)?\Z")

#: The same in words, for whoever wrote it otherwise.
FORM = (
    "A webhook's URL is https with a host name and no address, without a user or a fragment, on "
    "port 443, 80 or above 1023."
)

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
# What `is_global` passes in some release of Python, and leads elsewhere than it says.
_NOT_PUBLIC = [
    ipaddress.ip_network(it)
    for it in (
        "168.63.129.16/32",  # Azure's host agent, reached from each of its machines
        "192.0.0.0/24",  # protocol assignments; a metadata service listens on one of them
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments, Teredo among them: an IPv4 address inside
        "2002::/16",  # 6to4: an IPv4 address inside
        "3fff::/20",  # documentation
    )
]

#: Looks a name up: host and port to addresses. Raises OSError.
Resolver = Callable[[str, int], list[str]]


class LookUpFailed(OSError):
    """The name has no address at the moment, or nobody answered in time."""


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system has them. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of a label that is too long
        raise LookUpFailed(f"{host} has no address") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


_ROOM = threading.BoundedSemaphore(LOOK_UPS)


class AddressBook:
    """Turns names into addresses that may be called. Safe for threads and forks."""

    def __init__(
        self,
        resolve: Resolver | None = None,
        *,
        seconds: float = LOOK_UP_SECONDS,
        room: threading.Semaphore = _ROOM,
        patience: float | None = None,
    ) -> None:
        """``seconds``: the longest look-up. ``room``: for how many at once, in the process.
        ``patience``: the longest wait for a place in it, by default ``seconds``."""
        self._resolve = resolve
        self._seconds = seconds
        self._room = room
        self._patience = seconds if patience is None else patience

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to. Raises `RefusedUrl` if one of them is not public, and
        `LookUpFailed`.

        One is enough to refuse: whoever mixes them has us take the other one the next time.
        """
        found = self._looked_up(host, port)
        if not found:
            raise LookUpFailed(f"{host} has no address")
        if not all(may_be_called(address) for address in found):
            # Without the address: it would tell about our network.
            raise RefusedUrl(f"{host} leads to an address that is not public.")
        return found

    def _looked_up(self, host: str, port: int) -> list[str]:
        """Look up in a thread, because nothing else bounds the system's look-up in time."""
        answers: list[list[str] | Exception] = []
        if not self._room.acquire(timeout=self._patience):
            raise LookUpFailed("too many look-ups are under way")
        thread = threading.Thread(
            target=self._answer, args=(host, port, answers), name="webhook look-up", daemon=True
        )
        thread.start()
        thread.join(self._seconds)
        answer = answers[0] if answers else LookUpFailed(f"no answer about {host} in time")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, host: str, port: int, answers: list[list[str] | Exception]) -> None:
        try:
            answers.append((self._resolve or look_up)(host, port))
        except Exception as error:
            answers.append(error)
        finally:
            self._room.release()


def check_form(url: str) -> tuple[str, int]:
    """Host and port of a URL that has the right form. Raises `RefusedUrl`."""
    parts = URL.match(url)
    if parts is None:
        raise RefusedUrl(FORM)
    scheme, host, port = parts.groups()
    local = conf.allow_loopback()
    if scheme == "http" and not local:
        raise RefusedUrl("A webhook's URL is https: http would show what it tells to everybody.")
    if host == "localhost" and not local:
        raise RefusedUrl("localhost is this machine, and no merchant's.")
    return host, int(port or (443 if scheme == "https" else 80))


#: Of requests. One look-up at a time, and nobody waits for another's: a merchant whose names take
#: long to resolve must not hold every thread.
_OF_REQUESTS = threading.BoundedSemaphore(1)


def check(url: str, book: AddressBook | None = None) -> None:
    """Raises `RefusedUrl` when it is known that the URL must not be called.

    A name without an address passes, and one that could not be looked up now: it may get one, and
    each delivery looks again.
    """
    host, port = check_form(url)
    try:
        (book or AddressBook(room=_OF_REQUESTS, patience=0)).addresses(host, port)
    except OSError:
        return


def may_be_called(text: str) -> bool:
    """Whether anybody on the internet could call this address, or the demo may call itself."""
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            # What a network without IPv4 calls all of the rest by.
            address = ipaddress.IPv4Address(address.packed[-4:])
    if address.is_loopback:
        return conf.allow_loopback()
    return is_public(address)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is a unicast address of the internet that holds no other one inside."""
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    return address.is_global and not address.is_multicast and not _is_in(address, _NOT_PUBLIC)


def _is_in(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> bool:
    return any(address in network for network in networks if network.version == address.version)
