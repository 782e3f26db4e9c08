"""The files of the page, with the headers under which a browser may run nothing else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SECURITY = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-cache"),
]
_KINDS = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
}


@cache
def page_file(name: str) -> tuple[bytes, bytes] | None:
    """Return the content and the type of a file of the page; None if there is no such file."""
    try:
        content = (files(__package__) / "page" / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content, _KINDS[name.rpartition(".")[2]]
