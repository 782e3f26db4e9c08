"""Values, texts, bytes and tables that no user means to give, from a source of chance: seeds,
hypothesis or atheris."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

# Control characters, markup, separators, escapes, directions of writing, numbers that are not, ids
# that look alike.
TEXTS = (
    *(
        "",
        " ",
        "a",
        "b",
        "x y",
        "1",
        "-1",
        "0.5",
        "1e999",
        "nan",
        "inf",
        "null",
        "true",
        "~",
        "2020-01-01",
        "12:30:00",
    ),
    *(
        "\n",
        "\r\n",
        "\t",
        "\0",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "\u2028",
        "\u202eabc",
        "\ufeff",
        "é",
        "漢字",
        "😀",
        "e\u0301",
    ),
    *(
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "{{ 7 * 7 }}",
        "{% raw %}",
        "[bold]",
        "`a`|b",
        "]]>",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "~",
        "*",
        "a" * 300,
        "word " * 40,
        "key=value",
        "a: b",
        "- a",
        "&a [*a]",
    ),
    *(
        "!!python/object/apply:os.system [id]",
        "<<: *a",
        "%s%n",
        "query",
        "doc",
        "item",
        "user",
        "::",
        "0x10",
        "1_000",
        "٣",
    ),
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    10,
    0.5,
    -0.5,
    1e-9,
    1e300,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**70,
)
ODD = (float("nan"), float("inf"), float("-inf"), 10**400, None, True, False)
BITS = (
    *(
        b"\0",
        b"\xff",
        b"\xc3(",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\n\n",
        b'"',
        b"'",
        b"\\",
        b"\\ud800",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"null",
        b"NaN",
        b"1e999",
        b"-",
        b"\t",
        b"[" * 5000,
        b'{"a":' * 3000,
        b"9" * 5000,
    ),
    *(
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!",
        b"---\n",
        b"...",
        b"? ",
        b"|",
        b">",
        b"%",
        b"@",
        b"PAR1",
        b"ARROW1",
        b"\x93NUMPY",
        b"|O",
    ),
)


def text(chance: Random) -> str:
    """A text from the list, a few put together, or letters of any alphabet."""
    kind = chance.randrange(8)
    if kind < 5:
        return chance.choice(TEXTS)
    if kind == 5:
        return chance.choice(TEXTS) + chance.choice(TEXTS)
    return "".join(
        chr(chance.choice((chance.randrange(1, 128), chance.randrange(1, 0xD800))))
        for _ in range(kind)
    )


def number(chance: Random) -> Any:
    """A number, mostly a usual one."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randrange(-5, 50)
    return chance.random() if kind == 1 else chance.choice(NUMBERS)


def value(chance: Random, depth: int = 2) -> Any:
    """Whatever JSON has."""
    kind = chance.randrange(10 if depth else 7)
    if kind < 3:
        return text(chance)
    if kind < 6:
        return number(chance)
    if kind == 6:
        return chance.choice(ODD)
    if kind < 9:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {text(chance): value(chance, depth - 1) for _ in range(chance.randrange(4))}


def mutated(chance: Random, content: bytes) -> bytes:
    """A few bytes changed, left out, repeated, moved or put in."""
    found = bytearray(content)
    for _ in range(1 + chance.randrange(3)):
        at = chance.randrange(len(found) + 1)
        length = chance.choice((1, 1, 1, 2, 4, 8, 50))
        kind = chance.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = chance.randrange(256)
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = chance.choice(BITS)
        elif kind == 4:
            found[at : at + length] = chance.choice(BITS)
        elif kind == 5:
            start = chance.randrange(len(found) + 1)
            found[at:at] = found[start : start + length]
        else:
            del found[at:]
    return bytes(found)


def altered(chance: Random, document: Any) -> Any:
    """A JSON document with one value or key somewhere in it replaced, or left out."""
    if isinstance(document, dict) and document and chance.randrange(4):
        key = chance.choice(list(document))
        found = dict(document)
        kind = chance.randrange(6)
        if kind == 0:
            del found[key]
        elif kind == 1:
            found[text(chance)] = found.pop(key)
        else:
            found[key] = altered(chance, found[key])
        return found
    if isinstance(document, list) and document and chance.randrange(4):
        at = chance.randrange(len(document))
        return [altered(chance, item) if i == at else item for i, item in enumerate(document)]
    return value(chance)


def damaged(chance: Random, content: bytes) -> bytes:
    """A JSON file with another value in it, or with other bytes."""
    if chance.randrange(2):
        return mutated(chance, content)
    return json.dumps(altered(chance, json.loads(content))).encode()


def column(chance: Random, rows: int) -> pa.Array:
    """A column of a type that Arrow has."""
    kind = chance.randrange(16)
    some = [None if chance.randrange(6) == 0 else i for i in range(rows)]
    integers = [None if i is None else chance.randrange(-3, 120) for i in some]
    if kind < 4:
        texts = [None if i is None else text(chance) for i in some]
        return pa.array(texts, chance.choice((pa.string(), pa.large_string())))
    if kind == 4:
        return pa.array(
            [None if i is None else [text(chance)] * chance.randrange(3) for i in some],
            pa.list_(pa.string()),
        )
    if kind == 5:
        objects = [
            None if i is None else {"docid": text(chance), "title": "t", "text": text(chance)}
            for i in some
        ]
        fields = pa.struct(
            [(name, pa.string()) for name in ("docid", "title", "text")[chance.randrange(2) :]]
        )
        return pa.array(
            objects, fields if chance.randrange(2) else pa.struct([("text", pa.string())])
        )
    if kind == 6:
        return pa.array(
            [None if i is None else text(chance) for i in some], pa.string()
        ).dictionary_encode()
    if kind == 7:
        return pa.array(
            [None if i is None else chance.choice((0.5, -1.0, *ODD[:3])) for i in some],
            pa.float64(),
        )
    if kind == 8:
        return pa.array([None if i is None else chance.randrange(2**64) for i in some], pa.uint64())
    if kind == 9:
        return pa.array(
            [None if i is None else bytes([chance.randrange(256)]) for i in some], pa.binary()
        )
    if kind == 10:
        return pa.array(integers, pa.int64()).cast(
            chance.choice((pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.time64("us")))
        )
    if kind == 11:
        days = [
            None
            if i is None
            else datetime.date(1, 1, 1) + datetime.timedelta(chance.randrange(3_000_000))
            for i in some
        ]
        return pa.array(days, pa.date32())
    if kind == 12:
        return pa.array(
            [None if i is None else decimal.Decimal(i) for i in integers], pa.decimal128(12, 2)
        )
    if kind == 13:
        return pa.array(
            [None if i is None else [[i]] for i in integers], pa.list_(pa.list_(pa.int64()))
        )
    if kind == 14:
        return chance.choice(
            (
                pa.nulls(rows),
                pa.array([bool(i) for i in integers]),
                pa.array(integers, pa.duration("s")),
            )
        )
    return pa.array(integers, chance.choice((pa.int8(), pa.int32(), pa.int64(), pa.float32())))


def table(chance: Random, names: Sequence[str], likely: Sequence[str] = ()) -> pa.Table:
    """A table of a few rows with some of these columns, the likely ones mostly there and mostly of
    texts."""
    rows = chance.randrange(5)
    chosen = [name for name in likely if chance.randrange(8)] + [
        name for name in names if chance.randrange(12) == 0
    ]
    chosen += [text(chance)] if chance.randrange(12) == 0 else []
    columns = [
        pa.array([chance.choice("abcdefgh") for _ in range(rows)])
        if name in likely and chance.randrange(3)
        else column(chance, rows)
        for name in chosen
    ]
    return pa.table(columns, names=chosen) if columns else pa.table({"": pa.nulls(rows)})
