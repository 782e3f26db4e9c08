"""Names of the columns of well-known files without a line of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RATINGS = ("user", "item", "rating", "time")
_GENRES = tuple(f"genre_{i}" for i in range(19))


@dataclass(frozen=True)
class KnownFile:
    """A well-known file of a public data set.

    Args:
        of: the data set.
        columns: the names of the columns, in order.
        encoding: of the file, if not UTF-8.
    """

    of: str
    columns: tuple[str, ...]
    encoding: str | None = None


_KNOWN: Mapping[str, KnownFile] = {
    "ratings.dat": KnownFile("MovieLens", _RATINGS),
    "movies.dat": KnownFile("MovieLens", ("item", "title", "genres"), "latin-1"),
    "users.dat": KnownFile("MovieLens", ("user", "gender", "age", "occupation", "zip_code")),
    "u.data": KnownFile("MovieLens-100K", _RATINGS),
    "u.user": KnownFile("MovieLens-100K", ("user", "age", "gender", "occupation", "zip_code")),
    "u.item": KnownFile(
        "MovieLens-100K",
        ("item", "title", "release_date", "video_release_date", "url", *_GENRES),
        "latin-1",
    ),
    "yoochoose-clicks.dat": KnownFile("YooChoose", ("session", "time", "item", "category")),
    "yoochoose-buys.dat": KnownFile("YooChoose", ("session", "time", "item", "price", "quantity")),
    **dict.fromkeys(
        ("loc-gowalla_totalcheckins.txt", "gowalla_totalcheckins.txt"),
        KnownFile("Gowalla", ("user", "time", "latitude", "longitude", "item")),
    ),
}


def known_file(path: Path) -> KnownFile | None:
    """Return the known form of a file of a public data set, by name, packed or not; None for any
    other file.

    >>> known_file(Path("ml-1m/ratings.dat")).columns
    ('user', 'item', 'rating', 'time')
    """
    return _KNOWN.get(path.name.lower().removesuffix(".gz").removesuffix(".zst"))
