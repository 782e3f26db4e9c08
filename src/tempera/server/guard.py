"""Rules for who may ask: names of the server, origins of pages, and the token."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from ..errors import ConfigError
from .refusals import AUTHENTICATION, INVALID, PERMISSION, Refused

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Addresses that stand for all addresses of a machine.
_EVERY = ("0.0.0.0", "::")
_LEAST = 16  # letters of a token
# Ports that an origin leaves out.
_USUAL = {80: "http", 443: "https"}
_JSON = b"application/json"


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def in_address(host: str) -> str:
    """Return a host as it stands in an address: IPv6 in brackets.

    >>> in_address("::1"), in_address("example.org")
    ('[::1]', 'example.org')
    """
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class Guard:
    """Let a request pass, or refuse it.

    A page of another site, open in a browser of this machine, could ask a server on loopback: it
    sends its own `Origin`, or, after it has led its own name to 127.0.0.1 (DNS rebinding), its own
    name as `Host`. Only known names pass.

    Args:
        host: address that the server listens on.
        port: of the server.
        names: further names, with or without a port, as of a proxy (`--allow-host`).
        token: that every request has to bear, apart from `/healthz`, `/readyz` and the page.

    Raises:
        ConfigError: a host for others without a token, a short token, or an impossible name.
    """

    def __init__(
        self, host: str, port: int, names: Sequence[str] = (), token: str | None = None
    ) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"--host {host} lets other machines ask, which needs a token: set TEMPERA_TOKEN, "
                "or give --token-file FILE"
            )
        if token is not None and (len(token) < _LEAST or not token.isascii() or " " in token):
            raise ConfigError(
                f"the token has {len(token)} letters; expected at least {_LEAST} of ASCII, without "
                "spaces, such as the output of: openssl rand -hex 32"
            )
        self._token = None if token is None else f"Bearer {token}".encode()
        self._any_address = host in _EVERY
        self._hosts = set[bytes]()
        self._origins = set[bytes]()
        for name in (*LOOPBACK, in_address(host)):
            self._allow(name, port)
            # Without the port, it is the origin of another application of this machine.
            self._origins |= _origins_of(f"{name}:{port}")
            if port in _USUAL:
                self._origins.add(f"{_USUAL[port]}://{name}".encode())
        for name in names:
            if not name or "/" in name or "@" in name or not name.isascii():
                raise ConfigError(
                    f"--allow-host {name!r} is no host; give a name such as search.example.org"
                )
            self._allow(name.lower(), port)
            self._origins |= _origins_of(name.lower()) | _origins_of(f"{name.lower()}:{port}")

    def _allow(self, name: str, port: int) -> None:
        """Add a host as a client names it; without a port, it stands for the usual ports, too."""
        self._hosts.add(name.encode())
        self._hosts.add(f"{name}:{port}".encode())

    @property
    def has_token(self) -> bool:
        """True if requests need a token."""
        return self._token is not None

    def refuse_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Refused for a name that is not the server's, or a page of another site."""
        host = headers.get(b"host", b"")
        if host not in self._hosts and not self._is_address(host):
            raise Refused(
                403,
                PERMISSION,
                "the request's Host is not a name of this server: ask by another, or start it with "
                "--allow-host NAME",
            )
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins:
            return
        if self._any_address and origin == b"http://" + host:
            return
        raise Refused(
            403, PERMISSION, "the request comes from a page of another site, and is not answered"
        )

    def _is_address(self, host: bytes) -> bool:
        """Return True for a numeric address, if the server listens on all of its machine: a page
        cannot lead a number elsewhere."""
        if host.lower() in self._hosts:
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(urlsplit(f"//{host.decode('ascii')}").hostname or "")
        except ValueError:
            return False
        return True

    def refuse_stranger(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Refused without the token; the comparison takes the same time for any token."""
        if self._token is None:
            return
        authorization = headers.get(b"authorization", b"")
        if not hmac.compare_digest(authorization, self._token):
            raise Refused(
                401,
                AUTHENTICATION,
                "give the server's token in the header: Authorization: Bearer TOKEN",
                [(b"www-authenticate", b"Bearer")],
            )


def _origins_of(name: str) -> set[bytes]:
    """Return the origins of the pages of a host."""
    return {f"http://{name}".encode(), f"https://{name}".encode()}


def refuse_other_content(headers: Mapping[bytes, bytes]) -> None:
    """Raise Refused for a body that does not claim to be JSON: a form of a page of another site
    cannot claim it."""
    kind = headers.get(b"content-type", b"")
    if kind == _JSON and b"content-encoding" not in headers:
        return
    name, _, parameters = kind.partition(b";")
    charset = parameters.strip().lower().replace(b'"', b"")
    if name.strip().lower() != _JSON or charset not in (b"", b"charset=utf-8"):
        raise Refused(415, INVALID, "the header Content-Type has to be application/json")
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding != b"identity":
        raise Refused(415, INVALID, "the body has a Content-Encoding; send it as it is")
