"""Requests that are not answered: a status, a type and one line, in OpenAI's form of an error."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import orjson

from ..errors import TemperaError, one_line
from .bounds import SECONDS_TO_RETRY

# Every type of an error, so that a metric has a bounded number of labels.
INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
NOT_FOUND = "not_found_error"
BUSY = "rate_limit_error"
SLOW = "timeout_error"
FAULT = "server_error"
TYPES = (INVALID, AUTHENTICATION, PERMISSION, NOT_FOUND, BUSY, SLOW, FAULT)

Headers = list[tuple[bytes, bytes]]

# What stands before and after the name of a folder, if it is not part of a longer name.
_BEFORE = r"(?<![\w/\\.~-])"
_AFTER = r"(?![\w-]|\.\w)"


class Refused(Exception):
    """A request that is answered by an error.

    Args:
        status: of HTTP.
        kind: one of `TYPES`.
        message: one line, without a path and without a text of somebody else.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, kind: str, message: str, headers: Headers | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or []

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        return orjson.dumps({"error": {"message": str(self), "type": self.kind}})


def invalid(message: str, status: int = 422) -> Refused:
    """Return the refusal of a request that asks for something impossible."""
    return Refused(status, INVALID, message)


def busy(message: str) -> Refused:
    """Return the refusal of a request for which there is no room now."""
    return Refused(429, BUSY, message, [(b"retry-after", b"%d" % SECONDS_TO_RETRY)])


def unready(message: str) -> Refused:
    """Return the refusal of a request before the runs are open, or while the server stops."""
    return Refused(503, FAULT, message, [(b"retry-after", b"%d" % SECONDS_TO_RETRY)])


def fault(number: str) -> Refused:
    """Return the answer to a request that met a fault; the log has the rest under its number."""
    return Refused(500, FAULT, f"internal error {number}: the server's log says more")


def message_without_paths(error: TemperaError, folder: Path) -> str | None:
    """Return the message of an error about a run, with the name of the run in place of its folder;
    None if the message names a file, which is nobody's business but the server's.

    A text that a client has sent may look like a path. So only folders that the server knows count:
    the run's, those above it, the one the server works in, and the user's own.

    >>> from ..errors import DataError
    >>> folder = Path("/srv/runs/faq")
    >>> message_without_paths(DataError("/srv/runs/faq is a recommender"), folder)
    'faq is a recommender'
    >>> message_without_paths(DataError("/srv/runs/faq/index/vectors.npy is damaged"), folder)
    >>> message_without_paths(DataError("/srv/runs/other is no run"), folder)
    >>> message_without_paths(DataError("no document has the id '/docs/x'"), folder)
    "no document has the id '/docs/x'"
    """
    message = str(error)
    name = one_line(folder.name)
    places = [os.path.realpath(folder), str(folder.absolute()), str(folder)]
    for known in places:
        place = re.escape(one_line(known))
        # An error of writing ends with the file that was written.
        files = rf" \({_BEFORE}{place}(?:\.partial|\.replaced)?[/\\][^()]*\)"
        message = re.sub(files, "", message)
        # A document that is not there is looked for in the folder of the index.
        message = re.sub(rf"of {place}[/\\]index ", lambda _: f"of {name} ", message)
        if re.search(rf"{_BEFORE}{place}[/\\]", message):
            return None
        message = re.sub(rf"{_BEFORE}{place}{_AFTER}", lambda _: name, message)
    escaped = re.escape(name)
    if re.search(rf"{_BEFORE}(?:{escaped}\.(?:partial|replaced)|\.{escaped}\.lock)\b", message):
        return None
    for above in _above(places):
        if re.search(rf"(?<![\w.~-]){re.escape(above)}{_AFTER}", message):
            return None
    return message


def _above(places: list[str]) -> set[str]:
    """Return the folders above some places, the one the server works in, and the user's own, as a
    message shows them; not the root, which stands in any text."""
    known = [parent for place in places for parent in Path(place).parents]
    known.append(Path(os.path.expanduser("~")))
    with suppress(OSError):  # the folder is gone
        known.append(Path.cwd())
    return {one_line(str(each)) for each in known if each.name and each.is_absolute()}
