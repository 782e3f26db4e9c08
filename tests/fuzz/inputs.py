"""Every reader of the package with its input made by chance, and what has to hold of whatever it
answers.

An answer is a result, or one TemperaError of one line that names the file. Nothing else is raised,
nothing is unpickled or executed, nothing is written outside the folder, and no input takes more
than a limit of seconds or memory.
"""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
import shutil
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as parquet
import torch
from chance import altered, column, damaged, mutated, number, table, text, value
from torch import nn

from tempera.artifacts.calibrated import read_calibration
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import Index
from tempera.corpus.where import passing
from tempera.engine.cache import Cache
from tempera.engine.checkpoint import State
from tempera.errors import TemperaError
from tempera.forms.event_roles import USUAL as INTERACTION_ROLES
from tempera.forms.roles import USUAL as PAIR_ROLES
from tempera.io.documents import parsed
from tempera.io.manifest import MANIFEST, first_fault, refuse_damaged
from tempera.mining.vectors import Store, keys_of
from tempera.options import yaml_options as config
from tempera.options.build import build, build_roles
from tempera.options.names import PARTS, SECTIONS
from tempera.recommend.read.interactions import Interactions
from tempera.recommender.recommender import Recommender
from tempera.run.resume import Checkpoints
from tempera.server import bodies
from tempera.server.refusals import Refused
from tempera.tables.profile import profile
from tempera.text.read.beir import read_beir
from tempera.text.read.keeper import Keeper
from tempera.text.read.sources import PairsFile, documents
from tempera.towers.saved import load
from tempera.tuning.space import Space

SECONDS = 2.0  # of processor time, of one input
Files = Mapping[str, bytes]


class Fault(AssertionError):
    """What must not happen, whatever is given."""


# ---- the folder that is read


@dataclass
class Place:
    """A folder that holds the files of one input; those that an input leaves as they were are not
    written again."""

    folder: Path
    now: dict[str, bytes] = field(default_factory=dict)

    def put(self, files: Files) -> None:
        """Make it hold these files."""
        for name in self.now.keys() - files.keys():
            (self.folder / name).unlink(missing_ok=True)
        for name, content in files.items():
            if self.now.get(name) is not content:
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        self.now = dict(files)

    def empty(self) -> None:
        """Remove every file, also those that a reader has written."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.now = {}


@dataclass(frozen=True)
class Reader:
    """What is read: `make` gives the files of an input and its options, `read` reads them from a
    folder."""

    name: str
    make: Callable[[Random], tuple[Files, Any]]
    read: Callable[[Path, Any], object]
    named: bool = True  # whether a message has to name a file
    writes: bool = False  # whether the folder holds other files afterwards


def is_plain_line(message: str) -> bool:
    """Whether a message is one line that a terminal does not obey."""
    return bool(message) and not any(
        unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in message
    )


def accepts(reader: Reader, chance: Random, place: Place) -> bool:
    """Give a reader one input: whether it had a result.

    Raises:
        Fault: anything but a result or one line.
    """
    files, options = reader.make(chance)
    place.put(files)
    with watched(place.folder) as seen:
        try:
            reader.read(place.folder, options)
            message = None
        except TemperaError as error:
            message = str(error)
        finally:
            if reader.writes:
                place.empty()
    if seen:
        raise Fault(f"it did what no reader does: {seen[0]}")
    if message is None:
        return True
    if not is_plain_line(message):
        raise Fault(f"not one line of plain text: {message!r}")
    if len(message) > 1500:
        raise Fault(f"a line of {len(message):,} letters: {message[:100]!r}")
    if reader.named and str(place.folder) not in message:
        raise Fault(f"names no file: {message}")
    return False


# ---- what is watched while a reader reads

_SEEN: list[str] = []
_INSIDE: list[str] = []  # the folder while a reader reads; empty otherwise
_NEVER = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "os.fork",
)
_MOVES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "shutil.rmtree",
    "os.truncate",
)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _INSIDE:
        return
    if event in _NEVER:
        _SEEN.append(f"{event} {arguments!r}"[:200])
    elif event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        )
        if writes and isinstance(path, str) and not path.startswith((_INSIDE[0], "/dev/null")):
            _SEEN.append(f"writes {path}")
    elif event in _MOVES and not _place_of(*arguments).startswith(_INSIDE[0]):
        _SEEN.append(f"{event} {arguments!r}"[:200])


def _place_of(path: Any, *more: Any) -> str:
    """Return the whole path of a file that is removed or moved, which may be named inside of an
    open folder."""
    folder = more[-1] if more else -1
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), str(path))
    return str(path)


sys.addaudithook(_hook)


def _late(number: int, frame: object) -> None:
    raise Fault(f"more than {SECONDS:g} s")


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """What is done in the block that no reader may do."""
    _SEEN.clear()
    _INSIDE.append(str(folder))
    before = signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield _SEEN
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        _INSIDE.clear()


# ---- configurations


def _names() -> tuple[tuple[str, ...], ...]:
    """Names of parts, and of all options of all sections."""
    import inspect

    from tempera.engine.training_options import Training
    from tempera.mining.again import MiningAgain
    from tempera.options.names import hints_of
    from tempera.task.evaluation import Evaluation
    from tempera.task.showcase import Labels

    parts = {name: part for names in PARTS.values() for name, part in names.items()}
    options = {
        name
        for part in [*parts.values(), Training, Evaluation, Labels, MiningAgain]
        if callable(part)
        and not inspect.ismodule(part)
        and (inspect.isclass(part) or part in PARTS_OF_OBJECTIVE)
        for name in hints_of(part)
    }
    return tuple(parts), tuple(sorted(options))


PARTS_OF_OBJECTIVE = list(
    PARTS[next(kind for kind in PARTS if getattr(kind, "__name__", "") == "Objective")].values()
)
PART_NAMES, OPTION_NAMES = _names()
SECTION_NAMES = (*SECTIONS, "train", "evaluation", "mining", "card")
OPTIONS_OF = {
    "data": (
        "source",
        "path",
        "query",
        "doc",
        "negatives",
        "metadata",
        "min_score",
        "split",
        "users",
        "items",
        "sources",
        "weights",
    ),
    "tower": (
        "kind",
        "dimensions",
        "model",
        "lora",
        "doc",
        "query",
        "history",
        "vocabulary",
        "layers",
        "dropout",
        "sides",
    ),
    "objective": (
        "preset",
        "temperature",
        "scale",
        "pools",
        "masks",
        "corrections",
        "similarity",
        "memory",
        "matryoshka",
    ),
    "train": (
        "batch_size",
        "learning_rate",
        "max_steps",
        "num_train_epochs",
        "seed",
        "cache_memory",
        "sampled",
        "guide",
    ),
    "evaluation": ("queries", "metrics", "corpus", "bm25", "cold_items", "baselines"),
    "mining": ("again", "depth", "margin", "cross_encoder"),
    "card": ("title", "license", "language", "data_license"),
}
VALUES = (
    "1",
    "0",
    "-1",
    "0.1",
    "1e999",
    ".nan",
    "~",
    "true",
    "[]",
    "{}",
    "[1, 2]",
    "a",
    "''",
    "2020-01-01",
    "[a, [b]]",
    "1e3",
    "4KiB",
)


def _option(chance: Random) -> Any:
    kind = chance.randrange(8)
    if kind < 3:
        return chance.choice(PART_NAMES)
    if kind == 3:
        return [chance.choice(PART_NAMES) for _ in range(chance.randrange(4))]
    if kind == 4:
        return {chance.choice(PART_NAMES): {chance.choice(OPTION_NAMES): value(chance, 1)}}
    if kind == 5:
        return [{chance.choice(PART_NAMES): {chance.choice(OPTION_NAMES): number(chance)}}]
    return number(chance) if kind == 6 else value(chance)


def _yaml(chance: Random) -> bytes:
    sections = {}
    for _ in range(1 + chance.randrange(2)):
        section = chance.choice(SECTION_NAMES)
        names = OPTION_NAMES if chance.randrange(4) == 0 else OPTIONS_OF[section]
        sections[section] = {
            chance.choice(names): _option(chance) for _ in range(chance.randrange(4))
        }
    content = json.dumps(sections, ensure_ascii=bool(chance.randrange(2))).encode(
        "utf-8", "surrogatepass"
    )
    if chance.randrange(3) == 0:  # in blocks, as people write it
        lines = [
            f"{s}:\n" + "".join(f"  {n}: {json.dumps(v)}\n" for n, v in options.items())
            for s, options in sections.items()
        ]
        content = "".join(lines).encode("utf-8", "surrogatepass")
    return mutated(chance, content) if chance.randrange(2) else content


def _override(chance: Random) -> str:
    section = chance.choice(SECTION_NAMES)
    key = f"{section}.{chance.choice(OPTIONS_OF[section])}" if chance.randrange(4) else text(chance)
    given = chance.choice((*VALUES, *PART_NAMES[:40])) if chance.randrange(2) else text(chance)
    return f"{key}={given}" if chance.randrange(8) else text(chance)


def _config(chance: Random) -> tuple[Files, Any]:
    return {"config.yaml": _yaml(chance)}, [_override(chance) for _ in range(chance.randrange(3))]


def _space(chance: Random) -> tuple[Files, Any]:
    def domain(depth: int = 1) -> Any:
        kind = chance.randrange(7)
        if kind < 3:
            low, high = (
                chance.choice(("0.01", "1", "10", "-1", "1e999", "a", "", "0", "0x1")) for _ in "lh"
            )
            step = chance.choice(("", "", "", ":step 1", ":step 0.1", ":step x", ":x"))
            return f"{low}:{high}:{chance.choice(('log', 'linear', 'int', 'int:log', 'lin', ''))}{step}"
        if kind < 5:
            return [value(chance, 1) for _ in range(chance.randrange(4))]
        if kind == 5 and depth:
            return {
                text(chance): {f"train.{text(chance)}": domain(depth - 1)}
                for _ in range(chance.randrange(3))
            }
        return value(chance)

    section = chance.choice(SECTION_NAMES)
    given = {
        f"{section}.{chance.choice(OPTIONS_OF[section])}"
        if chance.randrange(8)
        else text(chance): domain()
        for _ in range(2)
    }
    content = json.dumps(given).encode()
    return {"space.yaml": mutated(chance, content) if chance.randrange(2) else content}, None


def _read_space(folder: Path, _: Any) -> None:
    space = Space.of(folder / "space.yaml")
    space.corners()


def _roles(chance: Random) -> tuple[Files, Any]:
    role = chance.choice(
        (
            *PAIR_ROLES,
            "min_score",
            "identical",
            "query_prompt",
            "metadata",
            "negative_margin",
            text(chance),
        )
    )
    given = chance.choice((*VALUES, "query", "[a, b]", "[[a]]", "drop", text(chance)))
    prefix = "data" if chance.randrange(8) else text(chance)
    return {}, [f"{prefix}.{role}={given}" for _ in range(1 + chance.randrange(2))]


# ---- tables


def _jsonl(chance: Random) -> bytes:
    names = [
        *PAIR_ROLES["query"][:2],
        *PAIR_ROLES["doc"][:2],
        "negatives",
        "negative_1",
        "query_id",
        "weight",
        "score",
        "x",
    ]
    rows = []
    for _ in range(chance.randrange(5)):
        row = {
            name: "abcdefgh"[chance.randrange(8)]
            for name in ("query", "doc")
            if chance.randrange(12)
        }
        for _ in range(chance.randrange(3)):
            row[chance.choice(names) if chance.randrange(4) else text(chance)] = value(chance)
        rows.append(json.dumps(row, ensure_ascii=bool(chance.randrange(2))))
    content = "\n".join(rows).encode("utf-8", "surrogatepass")
    return mutated(chance, content) if chance.randrange(2) else content


def _csv(chance: Random, names: tuple[str, ...]) -> bytes:
    columns = [name for name in names if chance.randrange(10)] + [
        text(chance) for _ in range(chance.randrange(5) == 0)
    ]
    lines = [columns]
    for _ in range(chance.randrange(5)):
        cells = [
            chance.choice("abcdefgh0123") if chance.randrange(3) else text(chance) for _ in columns
        ]
        lines.append(cells if chance.randrange(12) else cells[1:])
    quoted = chance.randrange(2)
    rows = [
        ",".join('"' + cell.replace('"', '""') + '"' if quoted else cell for cell in line)
        for line in lines
    ]
    content = "\n".join(rows).encode()
    return mutated(chance, content) if chance.randrange(2) else content


def _parquet(chance: Random, names: tuple[str, ...], likely: tuple[str, ...]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(
        table(chance, names, likely), out, compression=chance.choice(("none", "snappy"))
    )
    return mutated(chance, out.getvalue()) if chance.randrange(2) else out.getvalue()


def _zipped(chance: Random, content: bytes) -> tuple[str, bytes]:
    """One in eight with gzip, whole or damaged."""
    if chance.randrange(8):
        return "", content
    packed = gzip.compress(content, 1)
    return ".gz", mutated(chance, packed) if chance.randrange(2) else packed


def _role_options(chance: Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if chance.randrange(3) == 0:
        options["metadata"] = ("*",)
    if chance.randrange(4) == 0:
        options["min_score"] = 0.5
    if chance.randrange(2) == 0:
        options["identical"] = chance.choice(("keep", "drop"))
    if chance.randrange(6) == 0:
        options["query_prompt"] = "query: "
    if chance.randrange(6) == 0:
        options["keep"] = chance.choice(((), ("x",), ("query", "x"), ("doc",), ("x.a", "")))
    return options


PAIR_COLUMNS = tuple(names[0] for names in PAIR_ROLES.values())


def _pairs(chance: Random, kind: str) -> tuple[Files, Any]:
    if kind == "jsonl":
        end, content = _zipped(chance, _jsonl(chance))
    elif kind == "csv":
        names = (
            "query",
            "doc",
            *[chance.choice(PAIR_COLUMNS[2:]) for _ in range(chance.randrange(3))],
        )
        end, content = _zipped(chance, _csv(chance, names))
    else:
        end, content = "", _parquet(chance, PAIR_COLUMNS, ("query", "doc"))
    return {f"rows.{kind}{end}": content}, _role_options(chance)


def _read_pairs(folder: Path, options: dict[str, Any]) -> None:
    (path,) = folder.glob("rows.*")
    pairs, _ = PairsFile(path=str(path), **options).read()
    assert len(pairs)


def _read_documents(folder: Path, _: Any) -> None:
    (path,) = folder.glob("rows.*")
    documents(path)


TIMED = ("user", "item", "time")
EVENT_COLUMNS = tuple(INTERACTION_ROLES)


def _interactions(chance: Random) -> tuple[Files, Any]:
    kind = chance.randrange(3)
    if kind == 0:
        files = {"events.parquet": _parquet(chance, EVENT_COLUMNS, TIMED)}
    elif kind == 1:
        files = {
            "events.csv": _csv(
                chance,
                (*TIMED, *[chance.choice(EVENT_COLUMNS[3:]) for _ in range(chance.randrange(2))]),
            )
        }
    else:
        rows = [
            {name: chance.randrange(9) if chance.randrange(8) else value(chance) for name in TIMED}
            for _ in range(chance.randrange(5))
        ]
        content = "\n".join(map(json.dumps, rows)).encode()
        files = {"events.jsonl": mutated(chance, content) if chance.randrange(2) else content}
    options: dict[str, Any] = {"strict_time": chance.randrange(2) == 0}
    if chance.randrange(3) == 0:
        options["metadata"] = ("*",)
    if chance.randrange(4) == 0:
        options["min_rating"] = 3.0
    if chance.randrange(4) == 0:
        options["missing_time"] = "drop"
    if chance.randrange(3) == 0:
        files["items.parquet"] = _parquet(chance, ("title", "kind", "price"), ("item", "title"))
    return files, options


def _read_interactions(folder: Path, options: dict[str, Any]) -> None:
    (path,) = folder.glob("events.*")
    items = folder / "items.parquet"
    timeline = Interactions(
        path=str(path), items=str(items) if items.exists() else None, **options
    ).read()
    assert len(timeline)


CORPUS = b"".join(
    b'{"_id": "d%d", "title": "t", "text": "some text %d"}\n' % (i, i) for i in range(3)
)
QUERIES = b"".join(b'{"_id": "q%d", "text": "what is %d"}\n' % (i, i) for i in range(3))
QRELS = b"query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t2\nq2\td2\t0\n"


def _beir(chance: Random) -> tuple[Files, Any]:
    files = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "qrels/test.tsv": QRELS}
    name = chance.choice(list(files))
    lines = files[name].splitlines(keepends=True)
    if chance.randrange(2) and name != "qrels/test.tsv":
        at = chance.randrange(len(lines))
        lines[at] = (
            json.dumps(
                altered(chance, json.loads(lines[at])), ensure_ascii=bool(chance.randrange(2))
            ).encode("utf-8", "surrogatepass")
            + b"\n"
        )
        files[name] = b"".join(lines)
    elif chance.randrange(3) == 0 and name == "qrels/test.tsv":
        files[name] = QRELS + "\t".join(text(chance) for _ in range(3)).encode() + b"\n"
    else:
        files[name] = mutated(chance, files[name])
    if chance.randrange(8) == 0:
        files[f"{name}.gz"] = gzip.compress(files.pop(name), 1)
    if chance.randrange(30) == 0:
        files.pop(next(iter(files)))
    return files, chance.choice(
        ("test", "test", "test", "train", "../test", "/etc/passwd", text(chance))
    )


def _read_beir(folder: Path, split: str) -> None:
    read_beir(folder, split, keeper=Keeper(None))


# ---- what runs and models leave


def _of_folder(
    sample: dict[str, bytes], chance: Random, json_files: tuple[str, ...]
) -> dict[str, bytes]:
    """The files of a folder with one of them damaged, exchanged for another, or left out."""
    files = dict(sample)
    name = (
        chance.choice(list(files))
        if chance.randrange(2)
        else chance.choice(json_files or tuple(files))
    )
    kind = chance.randrange(12)
    if kind == 0:
        del files[name]
    elif kind == 1:
        files[name] = files[chance.choice(list(files))]
    elif name in json_files:
        files[name] = damaged(chance, files[name])
    elif name.endswith(".safetensors") and kind < 7:
        files[name] = _header(chance, files[name])
    else:
        files[name] = mutated(chance, files[name])
    return files


def _header(chance: Random, content: bytes) -> bytes:
    """Safetensors with another header."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(altered(chance, json.loads(content[8 : 8 + length]))).encode()
    return (
        (len(header) if chance.randrange(8) else chance.randrange(2**64)).to_bytes(8, "little")
        + header
        + content[8 + length :]
    )


def _npy(chance: Random, vectors: np.ndarray[Any, Any]) -> bytes:
    """Vectors as another array would be saved, or with another header."""
    kind = chance.randrange(6)
    out = io.BytesIO()
    array: Any = vectors
    if kind == 0:
        array = vectors.astype(chance.choice(("f2", "f8", "i4", "c8", "?", "U3", "M8[s]", ">f4")))
    elif kind == 1:
        array = np.array([{}] * len(vectors), object)
    elif kind == 2:
        array = chance.choice(
            (
                vectors[:, :0],
                vectors[0],
                vectors[None],
                vectors[:2],
                np.asfortranarray(vectors),
                np.float32(1),
            )
        )
    elif kind == 3:
        array = np.where(
            np.arange(vectors.size).reshape(vectors.shape) == 0,
            np.float32(chance.choice(("nan", "inf"))),
            vectors,
        )
    np.save(out, array, allow_pickle=kind == 1)
    content = out.getvalue()
    if kind == 4:
        shape = chance.choice(
            ("(99999999999, 4)", "(-1, 4)", "(5,)", "()", "(5, 2**40)", "'a'", "(1e9, 4)")
        )
        content = content.replace(b"(5, 4)", shape.encode().ljust(6)[:16])
    return mutated(chance, content) if kind >= 4 and chance.randrange(3) else content


VECTORS = np.arange(20, dtype=np.float32).reshape(5, 4) / 20


def _arrow(found: pa.Table, stamp: bytes | None) -> bytes:
    out = io.BytesIO()
    found = found.replace_schema_metadata(None if stamp is None else {b"tempera": stamp})
    with pa.ipc.new_file(out, found.schema) as writer:
        writer.write_table(found)
    return out.getvalue()


def _kept(chance: Random) -> pa.Array:
    """Kept columns of five documents, mostly records of values of any type."""
    fields = {}
    for name in ("url", "year", *([text(chance)] if chance.randrange(4) == 0 else [])):
        fields[name] = column(chance, 5)
    shift = chance.choice((0, 8, 60))
    times = [chance.randrange(-(2**62), 2**62) >> shift for _ in range(5)]
    fields["day"] = pa.array(times, chance.choice((pa.timestamp("us"), pa.timestamp("us", "UTC"))))
    if chance.randrange(8) == 0:
        return chance.choice([*fields.values()])
    names = [*fields] if chance.randrange(8) else ["url"] * len(fields)
    return pa.StructArray.from_arrays([*fields.values()], names)


def _index(chance: Random) -> tuple[Files, Any]:
    names = ("id", "name", "place", "text")
    found = pa.table({name: [f"{name} {i}" for i in range(5)] for name in names})
    stamp: bytes | None = json.dumps(
        {"model": "m", "dimensions": 4, "metric": "cosine", "normalised": True}
    ).encode()
    if chance.randrange(2):
        found = found.append_column("columns", _kept(chance))
    kind = chance.randrange(6)
    if kind == 0:
        found = table(chance, names, names)
    elif kind == 1:
        stamp = chance.choice((None, damaged(chance, stamp or b"{}")))
    content = _arrow(found, stamp)
    if kind == 2:
        content = mutated(chance, content)
    out = io.BytesIO()
    if kind == 3:  # exported
        flat = pa.array(VECTORS.ravel())
        column = pa.FixedSizeListArray.from_arrays(flat, chance.choice((4, 4, 4, 5, 2)))[:5]
        found = (
            found.slice(0, len(column)).append_column("vector", column)
            if chance.randrange(4)
            else found.append_column("vector", pa.array(range(5)))
        )
        parquet.write_table(found, out)
        return {
            "vectors.parquet": mutated(chance, out.getvalue())
            if chance.randrange(2)
            else out.getvalue()
        }, None
    np.save(out, VECTORS)
    files = {
        "documents.arrow": content,
        "vectors.npy": _npy(chance, VECTORS) if kind > 3 else out.getvalue(),
    }
    if chance.randrange(30) == 0:
        files.pop(chance.choice(list(files)))
    return files, None


def _read_index(folder: Path, _: Any) -> None:
    found = Index(folder).search(np.ones(4, np.float32), 3)
    json.dumps([hit.json() for hit in found])


def _store(chance: Random, sample: dict[str, bytes]) -> tuple[Files, Any]:
    return _of_folder(sample, chance, ("space-float32/about.json",)), None


def _read_store(folder: Path, _: Any) -> None:
    store = Store(folder, "space")
    keys = keys_of(["a", "b", "c"])
    store.vectors[np.maximum(store.find(keys), 0)[: len(store)]].sum()


def _read_run(folder: Path, _: Any) -> None:
    run = Run(folder)
    assert isinstance(run.metrics, dict)
    json.dumps(run.results)
    run.search("what is there", 3)


def _read_recommender(folder: Path, _: Any) -> None:
    recommender = Recommender(folder)
    str(recommender.recommend(history=["i01"], k=2))
    str(recommender.recommend(user="u1", k=2))


def _read_model(folder: Path, _: Any) -> None:
    assert load(folder)(["a b", ""]).shape[0] == 2


def _read_calibration(folder: Path, _: Any) -> None:
    found = read_calibration(folder)
    found.probability([0.1, 0.9])
    assert str(found)
    json.dumps(found.json())


def _state() -> State:
    modules = nn.ModuleDict({"query": nn.Linear(2, 2), "doc": nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(modules.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return State(modules, optimizer, scaler, Cache())


def _read_checkpoint(folder: Path, state: State) -> None:
    found = Checkpoints(folder, {"train": {"seed": 0}})
    found.begin()
    found.load(state, "data")


CALIBRATION = {
    "model": "m",
    "kind": "isotonic",
    "map": {"scores": [0.1, 0.5], "probabilities": [0.2, 0.9]},
    "about": {"pairs": 9, "queries": 3, "relevant": 3, "base_rate": 0.3, "left_out": {"x": 1}},
    "judged": {
        "base rate": {
            name: {"mean": 0.1, "low": 0.0, "high": 0.2, "confidence": 0.95}
            for name in ("log_loss", "brier", "ece")
        }
    },
    "thresholds": [],
    "date": "2026-01-01",
}


# ---- filters

WORDS_OF_FILTERS = (
    *("lang", "year", "day", "tags", '"The Name"', "documents", "rowid", "x", "*", "?", "$1", "#1"),
    *(
        "1",
        "0",
        "-1",
        "2.5",
        "1e999",
        "'de'",
        "'2024-01-01'",
        "'%'",
        "null",
        "true",
        "[1, 'a']",
        "''",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ";",
        "--",
        "/*",
        "'",
        '"',
        "$$",
        ":",
        "::",
        ".",
        "->",
        "\n",
    ),
    *(
        "=",
        "<>",
        "<",
        ">=",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "||",
        "~",
        "and",
        "or",
        "not",
        "in",
        "is",
    ),
    *(
        "like",
        "between",
        "case",
        "when",
        "then",
        "else",
        "end",
        "cast(",
        "as",
        "integer",
        "varchar",
    ),
    *("select", "from", "where", "union", "exists", "over ()", "interval", "date", "lambda", "any"),
    *("lower(", "length(", "repeat(", "list_value(", "read_csv(", "getenv(", "count(", "range("),
)
FILTERED = pa.table(
    {
        "lang": ["de", "en", None],
        "year": [2024, None, 2026],
        "day": [datetime.date(2024, 1, 1), None, datetime.date(2025, 1, 1)],
        "tags": [["a"], [], None],
        "The Name": ["a", "b", "c"],
    }
)


def _expression(chance: Random, depth: int) -> str:
    """An expression by the grammar, or a word that has no place there."""
    if depth == 0 or chance.randrange(8) == 0:
        if chance.randrange(4):
            return chance.choice(("lang = 'de'", "year > 2024", "day is null", "lang", "year", "1"))
        return chance.choice(WORDS_OF_FILTERS) if chance.randrange(12) else text(chance)
    inner = [_expression(chance, depth - 1) for _ in range(3)]
    form = chance.choice(
        (
            *("{0} = {1}", "{0} and {1}", "{0} or {1}", "not {0}", "({0})", "{0} in ({1}, {2})"),
            *("{0} is null", "{0} between {1} and {2}", "case when {0} then {1} else {2} end"),
            *("cast({0} as {1})", "{0}::integer", "lower({0})", "coalesce({0}, {1})", "[{0}, {1}]"),
            *("{0} || {1}", "{0} + {1}", "{0} like {1}", "regexp_matches({0}, {1})", "{0}[{1}]"),
        )
    )
    return form.format(*inner)


def _filter(chance: Random) -> tuple[Files, Any]:
    kind = chance.randrange(4)
    if kind == 0:
        words = [chance.choice(WORDS_OF_FILTERS) for _ in range(chance.randrange(12))]
        return {}, " ".join(words)
    given = _expression(chance, chance.randrange(1, 6))
    if kind == 1:
        given = mutated(chance, given.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    return {}, given


def _read_filter(_: Path, expression: str) -> None:
    positions = passing(FILTERED, expression)
    assert positions.dtype == np.int64 and set(positions.tolist()) <= {0, 1, 2}


# ---- all of them


def taken(folder: Path, *without: str) -> dict[str, bytes]:
    """The files of a folder by name, without their checksums, for all of them would be refused."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (*without, MANIFEST)
    }


# ---- profiles, manifests and requests


def _sampled_table(chance: Random) -> tuple[Files, Any]:
    kind = chance.choice(("jsonl", "csv", "parquet"))
    if kind == "parquet":
        content = _parquet(chance, PAIR_COLUMNS, ("query", "doc"))
    else:
        content = (
            _jsonl(chance) if kind == "jsonl" else _csv(chance, (*TIMED, "rating", text(chance)))
        )
    return {f"rows.{kind}": content}, None


def _read_rows(path: Path) -> pa.Table:
    """Return rows of JSON without pyarrow's own reader, which a row of null kills."""
    rows = [parsed(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is no object")
    return pa.Table.from_pylist(rows)


def _read_profile(folder: Path, _: Any) -> None:
    """Profile a table that another reader opens: what it cannot open is no matter here."""
    (path,) = folder.glob("rows.*")
    openers = {
        ".jsonl": _read_rows,
        ".csv": pyarrow.csv.read_csv,
        ".parquet": lambda name: parquet.read_table(name, use_threads=False),
    }
    try:
        rows = openers[path.suffix](path)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError):
        raise TemperaError(f"{path} is no table") from None
    of_table = profile(rows, str(path))
    of_table.could_be("text", "time")


def _of_manifest(sample: Files, chance: Random) -> tuple[Files, Any]:
    files = dict(sample)
    name = MANIFEST if chance.randrange(3) else chance.choice(list(files))
    if chance.randrange(10) == 0:
        del files[name]
    elif name == MANIFEST:
        files[name] = damaged(chance, files[name])
    else:
        files[name] = mutated(chance, files[name])
    return files, None


def _read_manifest(folder: Path, _: Any) -> None:
    first_fault(folder)
    refuse_damaged(folder)


_BODIES: tuple[tuple[type[bodies.Body], dict[str, Any]], ...] = (
    (bodies.SearchBody, {"query": "a", "k": 3}),
    (bodies.SearchBody, {"query": ["a", "b"], "hybrid": True, "model": "texts"}),
    (bodies.EmbeddingsBody, {"input": ["a", "b"], "model": "texts"}),
    (bodies.RecommendBody, {"user": "u1", "k": 3, "exclude": ["i01"]}),
    (bodies.RecommendBody, {"history": ["i01", "i02"]}),
    (bodies.DocumentsBody, {"documents": [{"id": "a", "text": "b"}], "remove": ["c"]}),
)


def _request(chance: Random) -> tuple[Files, Any]:
    kind, given = chance.choice(_BODIES)
    if chance.randrange(4):
        given = altered(chance, given)
    content = json.dumps(given, ensure_ascii=bool(chance.randrange(2)))
    encoded = content.encode("utf-8", "surrogatepass")
    return {}, (encoded if chance.randrange(3) else mutated(chance, encoded), kind)


def _read_request(_: Path, given: tuple[bytes, type[bodies.Body]]) -> None:
    """Read the body of a request: a refusal is a line of text for the sender, with a status."""
    content, kind = given
    try:
        bodies.read_body(content, kind)
    except Refused as refusal:
        message = str(refusal)
        if not is_plain_line(message) or len(message) > 1000:
            raise Fault(f"not one line of plain text: {message!r}") from None
        raise TemperaError(message) from None


def readers(text_run: Path, recommender_run: Path, scratch: Path) -> dict[str, Reader]:
    """Every reader by name.

    Args:
        text_run: a small run of texts.
        recommender_run: a small run of interactions, with a user u1 and an item i01.
        scratch: an empty folder.
    """
    import sentence_transformers  # noqa: F401  what takes long is not the readers'
    from kept_inputs import kept_readers  # which takes its parts from here

    beside = ("report.html", "README.md", "calibration.svg", "calibration.png", "log.jsonl")
    run, model, other = (
        taken(text_run, *beside),
        taken(text_run / "model", *beside),
        taken(recommender_run, *beside),
    )
    whole = {**taken(text_run), MANIFEST: (text_run / MANIFEST).read_bytes()}
    store = Store(scratch / "store", "space")
    store.fill(keys_of(["a", "b"]), lambda rows: VECTORS[rows])
    vectors = taken(scratch / "store", "lock")
    state = _state()
    sum(p.sum() for p in state.modules.parameters()).backward()  # type: ignore[union-attr]
    state.optimizer.step()
    saved = Checkpoints(scratch / "checkpoints", {"train": {"seed": 0}})
    from tempera.run.resume import Position

    saved.save(state, Position("data"), [{"event": "step", "step": 1}])
    checkpoint = taken(scratch / "checkpoints")
    calibration = {"calibration.json": json.dumps(CALIBRATION).encode()}
    json_of = lambda files: tuple(name for name in files if name.endswith(".json"))  # noqa: E731
    found = [
        Reader(
            "config",
            _config,
            lambda folder, more: build(config.load(folder / "config.yaml", more)),
            named=False,
        ),
        Reader("space", _space, _read_space, named=False),
        Reader(
            "roles", _roles, lambda _, given: build_roles(config.load(None, given)), named=False
        ),
        Reader("jsonl", partial(_pairs, kind="jsonl"), _read_pairs),
        Reader("csv", partial(_pairs, kind="csv"), _read_pairs),
        Reader("parquet", partial(_pairs, kind="parquet"), _read_pairs),
        Reader(
            "documents", lambda c: _pairs(c, c.choice(("jsonl", "csv", "parquet"))), _read_documents
        ),
        Reader("beir", _beir, _read_beir),
        Reader("interactions", _interactions, _read_interactions),
        Reader("index", _index, _read_index),
        Reader("where", _filter, _read_filter, named=False),
        Reader("profile", _sampled_table, _read_profile),
        Reader("manifest", partial(_of_manifest, whole), _read_manifest),
        Reader("request", _request, _read_request, named=False),
        Reader("vectors", partial(_store, sample=vectors), _read_store),
        Reader("run", lambda c: (_of_folder(run, c, json_of(run)), None), _read_run),
        Reader(
            "recommender", lambda c: (_of_folder(other, c, json_of(other)), None), _read_recommender
        ),
        Reader("model", lambda c: (_of_folder(model, c, json_of(model)), None), _read_model),
        Reader(
            "calibration",
            lambda c: ({"calibration.json": damaged(c, calibration["calibration.json"])}, None),
            _read_calibration,
        ),
        Reader(
            "checkpoint",
            lambda c: (_of_folder(checkpoint, c, json_of(checkpoint)), state),
            _read_checkpoint,
        ),
        *kept_readers(text_run, recommender_run, scratch),
    ]
    return {reader.name: reader for reader in found}
