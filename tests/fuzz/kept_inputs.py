"""Readers of what commands leave on a disk and go on from: encoded corpora and their indexes, runs
that grow, unfinished work; and of folders and texts of other programs."""

from __future__ import annotations

import gc
import io
import json
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from chance import TEXTS, column, damaged, mutated, table, text
from inputs import PAIR_COLUMNS, VECTORS, Files, Reader, _jsonl, _npy, _of_folder, _parquet, taken

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.artifacts.new_documents import add_documents
from tempera.artifacts.run_folder import Run
from tempera.corpora.corpus_worker import WorkerShare, work
from tempera.corpora.encoding_job import EncodingJob, EncodingOptions
from tempera.corpus.approximate import Approximate
from tempera.corpus.approximate import write as write_faiss
from tempera.corpus.bits import FILE as BITS
from tempera.corpus.bits import Bits
from tempera.experiments.figures import csv_of
from tempera.experiments.grid import axes_of
from tempera.experiments.record import Record, read_records
from tempera.experiments.result import Point, Sweep
from tempera.mining.embedder import TRAINED, among_trained, trained_on
from tempera.mining.hard_negatives import Mining
from tempera.mining.indexed_shards import IndexedShards
from tempera.mining.shard_search import ShardDocuments
from tempera.recommender.new_events import add_events
from tempera.recommender.new_items import add_items
from tempera.recommender.recommender import Recommender
from tempera.tables.vector_files import read_vectors
from tempera.task.evaluation import Evaluation
from tempera.task.run_files import FAISS_FILE
from tempera.text.read import python_rows
from tempera.text.read.sources import PairsFile
from tempera.text.read.text_files import TextFiles
from tempera.text.shards.pair_survey import survey
from tempera.text.shards.shard_sampler import ShardSampler
from tempera.text.shards.streamed_pairs import PartStream
from tempera.text.train.encoded_documents import EncodedDocuments

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
NOTHING = np.empty(0, np.int64)
INDEX = "export/faiss"


def _json_of(files: Files) -> tuple[str, ...]:
    return tuple(name for name in files if name.endswith(".json"))


def _inside(folder: str, files: Files) -> dict[str, bytes]:
    """Return files as those of an inner folder."""
    return {f"{folder}/{name}": content for name, content in files.items()}


# ---- encoded corpora


def _corpus(folder: Path, rows: int) -> Path:
    """Write two shards of texts, one of them in an inner folder."""
    for name, first, last in (("a", 0, rows // 2), ("de/b", rows // 2, rows)):
        texts = [f"{WORDS[i % 8]} {WORDS[i // 8 % 8]} {i}" for i in range(first, last)]
        shard = pa.table(
            {"id": [f"d{i}" for i in range(first, last)], "text": texts, "year": range(first, last)}
        )
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(shard, path, row_group_size=max(2, rows // 3))
    return folder


def _other_shard(chance: Random, content: bytes) -> bytes:
    """Return a Parquet file whose columns or metadata are others."""
    rows = parquet.read_table(pa.BufferReader(content), use_threads=False)
    about = dict(rows.schema.metadata or {})
    kind = chance.randrange(4)
    at = chance.randrange(rows.num_columns)
    if kind == 0:
        rows = rows.remove_column(at)
    elif kind == 1 and about:
        key = chance.choice(list(about))
        about[key] = damaged(chance, about[key]) if about[key][:1] == b"{" else b"\xff"
    elif kind == 2:
        rows = rows.set_column(at, rows.column_names[at], column(chance, len(rows)))
    else:
        width = chance.choice((2, 4, 4, 8))
        number = chance.choice((0.5, float("nan"), 1e30, None))
        numbers = pa.array([number] * width * len(rows), pa.float32())
        vectors = pa.FixedSizeListArray.from_arrays(numbers, width)
        if "embedding" in rows.column_names:
            rows = rows.drop_columns(["embedding"]).append_column("embedding", vectors)
    out = io.BytesIO()
    written = rows.replace_schema_metadata(about)
    parquet.write_table(written, out, write_page_checksum=True, store_schema=True)
    return out.getvalue()


def _of_corpus(chance: Random, sample: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of an encoded corpus with one of them damaged."""
    if chance.randrange(3):
        return _of_folder(sample, chance, _json_of(sample))
    files = dict(sample)
    name = chance.choice([name for name in files if name.endswith(".parquet")])
    files[name] = _other_shard(chance, files[name])
    return files


def _read_corpus(folder: Path, _: Any, model: Path) -> None:
    corpus = EncodedCorpus(folder, model)
    assert len(corpus) >= 0 and repr(corpus)
    json.dumps([hit.json() for hit in corpus.search("ant bee", 3)])
    EncodedDocuments.read(folder)


def _unfinished(sample: dict[str, bytes], chance: Random) -> tuple[Files, Any]:
    """Return an encoding that was interrupted in its second shard, with a damaged file."""
    files = dict(sample)
    if chance.randrange(4):
        del files["corpus.json"]
    if chance.randrange(2):
        del files["records/de/b.json"]
        about = {"machine": text(chance), "process": chance.choice((1, "a", -1, 2**70, 1.5))}
        claim = json.dumps({**about, "started": 0.0}).encode()
        files["claims/de/b"] = damaged(chance, claim)
    return _inside("vectors", _of_corpus(chance, files)), None


def _read_encoding(folder: Path, _: Any, job: EncodingJob) -> None:
    """Resume an encoding: every shard is encoded that is not finished."""
    again = EncodingJob(job.model, job.corpus, str(folder / "vectors"), job.options)
    again.begin()
    again.unfinished()
    # The first of two workers waits for nobody.
    if work(again, WorkerShare(0, 2), stale=0.0) is not None:
        EncodedCorpus(folder / "vectors", job.model).search("ant bee", 3)


def _read_candidates(folder: Path, _: Any) -> None:
    """Search the rows of a corpus by its index, as mining does."""
    read = EncodedDocuments.read(folder)
    near = np.full((2, read.shards.width), 0.5, np.float32)
    documents = ShardDocuments(near, read.shards, read.rows[1:])
    known = np.array([-1, int(read.rows[0]) if len(read.rows) else -1])
    indexed = IndexedShards.read(documents, known, folder / INDEX)
    scores, positions = indexed.search(near, 3, (NOTHING, NOTHING))
    assert scores.shape == positions.shape


def _read_mining(folder: Path, _: Any, mine: Any) -> None:
    mine(folder / "mined.parquet", folder / "vectors")


# ---- pairs in shards


def _pair_shards(chance: Random) -> tuple[Files, Any]:
    rows = pa.table({"query": [f"q {i}" for i in range(30)], "doc": [f"d {i}" for i in range(30)]})
    out = io.BytesIO()
    parquet.write_table(rows, out, row_group_size=7)
    whole = out.getvalue()
    lines = "".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode()
    files = {"pairs/a.parquet": whole, "pairs/b.parquet": whole, "pairs/c.jsonl": lines}
    kind = chance.randrange(4)
    name = chance.choice(list(files))
    if kind == 0:
        files[name] = mutated(chance, files[name])
    elif kind == 1:
        files["pairs/b.parquet"] = _parquet(chance, PAIR_COLUMNS, ("query", "doc"))
    elif kind == 2:
        files["pairs/c.jsonl"] = _jsonl(chance)
    else:
        files["pairs/a.parquet"] = _other_shard(chance, whole)
    return files, chance.randrange(2)


def _read_pair_shards(folder: Path, seed: int) -> None:
    source = PairsFile(path=str(folder / "pairs"), in_shards=True)
    options = Evaluation(queries=3, validation=2, seed=seed)
    shards = survey(source, options, sample=20, folder=folder).shards
    if shards.count < 2:
        return
    sampler = ShardSampler(shards, batch_size=2, seed=seed)
    dealt = sampler.dealt(0)
    rows = PartStream(shards, dealt, 0).take(dealt.rows)
    assert len(rows) == shards.count == sum(map(len, sampler(0, sampler.batches_per_epoch)))


# ---- runs that grow


def _read_growing_texts(folder: Path, _: Any) -> None:
    run = folder / "run"
    add_documents(run, [{"id": "new", "doc": "a new bee"}])
    assert Run(run).search("a new bee", 2)


def _read_growing_items(folder: Path, _: Any) -> None:
    run = folder / "run"
    add_events(run, pa.table({"user": ["u1", "new"], "item": ["i01", "i02"], "time": [90, 91]}))
    items = folder / "items.jsonl"
    items.write_text(json.dumps({"item": "new", "title": "a new thing"}) + "\n")
    add_items(run, items)
    str(Recommender(run).recommend(user="new", k=2))


# ---- approximate indexes, bits, given vectors and trained texts


def _of_index(chance: Random, sample: dict[str, bytes]) -> tuple[Files, Any]:
    name = chance.choice(list(sample))
    content = sample[name]
    if chance.randrange(2):
        # Numbers of 4 or 8 bytes, which say how much follows.
        at = chance.randrange(min(len(content), 400))
        size = chance.choice((4, 8))
        number = chance.choice((0, 1, 2**31 - 1, 2**40, 2**63 - 1, 2**64 - 1, chance.randrange(99)))
        new = (number % 2 ** (8 * size)).to_bytes(size, "little")
        return {FAISS_FILE: content[:at] + new + content[at + size :]}, None
    return {FAISS_FILE: mutated(chance, content)}, None


def _read_approximate(folder: Path, _: Any) -> None:
    index = Approximate(folder / FAISS_FILE)
    index.top(np.full((2, index.shape[1]), 0.5, np.float32), 3)
    read_vectors(folder / FAISS_FILE)


def _given_vectors(chance: Random) -> tuple[Files, Any]:
    ids = "".join(f"{text(chance) if chance.randrange(9) == 0 else i}\n" for i in range(5))
    files = {"ids.txt": ids.encode("utf-8", "surrogatepass")}
    if chance.randrange(2):
        files["vectors.npy"] = _npy(chance, VECTORS)
    else:
        rows = table(chance, ("year", "doc"), ("id",))
        lists = [[0.5] * chance.choice((4, 4, 4, 3)) for _ in range(len(rows))]
        kept = pa.array(lists, pa.list_(pa.float32())) if chance.randrange(4) else None
        out = io.BytesIO()
        rows = rows.append_column("vector", column(chance, len(rows)) if kept is None else kept)
        parquet.write_table(rows, out)
        content = out.getvalue()
        files["vectors.parquet"] = mutated(chance, content) if chance.randrange(2) else content
    return files, chance.randrange(2)


def _read_given(folder: Path, with_ids: int) -> None:
    (path,) = folder.glob("vectors.*")
    read_vectors(path, folder / "ids.txt" if with_ids else None)


def _read_bits(folder: Path, _: Any, shape: tuple[int, int]) -> None:
    bits = Bits.read(folder, "made of", shape)
    if bits is not None:
        queries = np.ones((2, shape[1]), np.float32)
        bits.near(queries, 3)
        bits.moments(queries)


def _trained(chance: Random) -> tuple[Files, Any]:
    ids = np.arange(5)
    if chance.randrange(3) == 0:
        return {TRAINED: _npy(chance, VECTORS)}, None
    out = io.BytesIO()
    np.save(out, ids.astype(chance.choice(("i8", "i4", "u8", "f8", "U2", "M8[s]"))))
    content = out.getvalue()
    return {TRAINED: mutated(chance, content) if chance.randrange(2) else content}, None


def _read_trained(folder: Path, _: Any) -> None:
    trained = trained_on(folder)
    assert trained is not None
    assert among_trained(pa.chunked_array([["a", "b"]]), trained).shape == (2,)


# ---- records of sweeps


RECORDS = [
    Record(
        {"objective.temperature": value},
        seed=seed,
        metrics={"ndcg@10": value, "recall@10": 0.5},
        value=value,
        per_query=[value, 0.5],
        temperature=value,
        diagnosis={"hardest_share": 0.5},
        spread={"positive_50%": 0.5},
        loss=1.0,
        grad_norm=1.0,
        seconds=1.0,
    )
    for value in (0.1, 0.5)
    for seed in (0, 1)
]


def _points(chance: Random) -> tuple[Files, Any]:
    lines = [each.json() for each in RECORDS]
    at = chance.randrange(len(lines))
    content = damaged(chance, lines[at].encode())
    whole = [line.encode() for line in lines]
    whole[at] = content
    return {"points.jsonl": b"\n".join(whole)}, None


def _read_points(folder: Path, _: Any) -> None:
    points: dict[str, list[Record]] = {}
    for record in read_records(folder / "points.jsonl"):
        assert record.key and record.name and record.state
        points.setdefault(record.point, []).append(record)
    made = [Point(tuple(records), "") for records in points.values()]
    axes = axes_of({"objective.temperature": [0.1, 0.5]})
    known = []
    for point in made:
        is_whole = all("ndcg@10" in record.metrics for record in point.records)
        if is_whole and set(point.over) == {axes[0].field}:
            known.append(point)
    if known:
        result = Sweep.of(folder, axes, "ndcg@10", (0, 1), known)
        assert csv_of(result.table) and str(result)
        json.dumps(result.json())


# ---- texts and folders of other programs


PAGE = """<html><head><title>Tea &amp; cake</title><style>p {}</style></head><body><h1>Tea</h1>
<nav><a href="x">no</a></nav><p>Steep it. Then <b>wait</b>.</p><pre>a\n  b</pre><table><tr><td>1</td></tr>
</table><![CDATA[x]]><!-- no --><h2>Green</h2><ul><li>One. <li>Two.</ul></body></html>"""
MARKDOWN = """---\ntitle: "Tea"\n---\n# Tea\n\nSteep it. Then wait.\n\n## Green ##\n```py\n# no heading
```\n<!-- no -->\n- One. Two.\n\nA title\n\nand what follows. 我喜欢茶。很好。\n"""
PYTHON = '''"""A module."""\nimport os\n\n\nclass Tea:\n    """Leaves in water."""\n
    def steep(self, minutes: int = 3) -> str:
        """Return the tea, which has waited."""
        return f"{minutes!r:>{minutes}}"\n\n\nasync def wait():\n    """Wait."""\n    yield\n'''
SIGNS = (
    *("<", ">", "<!", "<![", "<!--", "-->", "</", "<pre>", "<h1>", "</h1>", "<nav>", "<script>"),
    *(
        "&#x110000;",
        "&#0;",
        "&amp",
        "<?x",
        "<![if",
        "# ",
        "```",
        "~~~",
        "---\n",
        ". ",
        "。",
        "\n\n",
    ),
    *("def f():\n", '"""', "'", "(", "lambda: ", "\\", "f'{", "async ", "class A", ": ", "\n    "),
)


def _texts(chance: Random) -> tuple[Files, Any]:
    name, content = chance.choice((("a.html", PAGE), ("a.md", MARKDOWN), ("a.py", PYTHON)))
    kind = chance.randrange(4)
    if kind == 0:
        return {name: mutated(chance, content.encode())}, None
    if kind == 1:  # much of the same
        sign = chance.choice(SIGNS) + chance.choice(("", "", chance.choice(SIGNS)))
        content += sign * chance.choice((10, 1000, 20_000))
    else:
        for _ in range(1 + chance.randrange(6)):
            at = chance.randrange(len(content) + 1)
            new = chance.choice(SIGNS) if chance.randrange(3) else chance.choice(TEXTS)
            content = content[:at] + new + content[at + chance.choice((0, 0, 1, 5)) :]
    return {name: content.encode("utf-8", "surrogatepass")}, None


def _read_texts(folder: Path, _: Any) -> None:
    (path,) = folder.iterdir()
    if path.suffix != ".py":
        TextFiles(str(path)).read()
        return
    named = io.BytesIO(f"{folder}\0{path}".encode())
    rows = io.BytesIO()
    try:
        python_rows.work(named, rows, list(python_rows.KINDS), 500)
    finally:
        gc.enable()  # which the worker of a process of its own does without
    with pa.ipc.open_stream(rows.getvalue()) as stream:
        stream.read_all().validate(full=True)


def _saved_set(chance: Random, sample: dict[str, bytes]) -> tuple[Files, Any]:
    files = _of_folder(sample, chance, _json_of(sample))
    if chance.randrange(3) == 0:
        names = ["data-0.arrow", text(chance)]
        about = {"_data_files": [{"filename": name} for name in names]}
        files["train/state.json"] = damaged(chance, json.dumps(about).encode())
    return _inside("set", files), chance.choice(("set", "set/train"))


def _read_saved_set(folder: Path, name: str) -> None:
    PairsFile(path=str(folder / name)).read()


def _saved_sample() -> dict[str, bytes]:
    """Return the files of a data set of two parts, as save_to_disk leaves them."""
    rows = pa.table({"query": ["a", "b", "c"], "doc": ["d", "e", "f"]})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    files = {"dataset_dict.json": b'{"splits": ["train", "test"]}'}
    for part in ("train", "test"):
        files[f"{part}/data-0.arrow"] = out.getvalue()
        files[f"{part}/state.json"] = b'{"_data_files": [{"filename": "data-0.arrow"}]}'
    return files


# ---- all of them


def kept_readers(text_run: Path, recommender_run: Path, scratch: Path) -> list[Reader]:
    """Every reader of what is left on a disk.

    Args:
        text_run: a small run of texts.
        recommender_run: a small run of interactions, with a user u1 and an item i01.
        scratch: a folder.
    """
    small = _corpus(scratch / "small", 10)
    options = EncodingOptions(("text",), "id", ("text", "year"))
    chosen: dict[str, Any] = {"text": "text", "id": "id", "columns": ["text", "year"]}
    encode(text_run, small, scratch / "encoded", **chosen)
    encoded = taken(scratch / "encoded")
    job = EncodingJob(str(text_run), (str(small),), "", options)
    many = scratch / "many encoded"
    encode(text_run, _corpus(scratch / "many", 300), many, **chosen)
    with mock.patch("tempera.exports.shards_to_faiss._JUDGED", 2):
        EncodedCorpus(many).export()
    candidates = taken(many, "export.json")

    pairs = scratch / "pairs.jsonl"
    lines = [{"query": f"{word} bee", "doc": f"bee {word}"} for word in WORDS]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mining = import_module("tempera.text.train.mine")

    def mine(output: Path, cache: Path) -> None:
        wanted = Mining(negatives=2, skip=0, depth=5)
        more: dict[str, Any] = {"corpus": many, "faiss": str(many / INDEX), "recall": 0.5}
        mining.mine(text_run, pairs, output, wanted, cache=cache, overwrite=True, **more)

    with mock.patch.object(mining.shutil, "rmtree"):  # what an interrupted call would leave
        mine(scratch / "mining" / "mined.parquet", scratch / "mining" / "vectors")
    mined = taken(scratch / "mining", ".mined.parquet.lock", "lock", "mined.parquet")
    tuned = {name: content for name, content in mined.items() if not name.endswith("0.parquet")}

    faiss = {}
    numbers = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    for kind in ("hnsw", "ivf_pq", "ivf_fast", "int8", "binary"):
        write_faiss(scratch / kind, numbers, kind)
        faiss[kind] = (scratch / kind).read_bytes()
    Bits.of(numbers).write(scratch, "made of")
    bits = {BITS: (scratch / BITS).read_bytes()}
    beside = ("report.html", "README.md", "calibration.svg", "calibration.png", "log.jsonl")
    texts = _inside("run", taken(text_run, *beside))
    items = _inside("run", taken(recommender_run, *beside))
    items["run/config.yaml"] = recommender_run.with_suffix(".yaml").read_bytes()
    saved = _saved_sample()

    def of(sample: dict[str, bytes]) -> Any:
        return lambda chance: (_of_folder(sample, chance, _json_of(sample)), None)

    def of_mining(chance: Random) -> tuple[Files, Any]:
        sample = chance.choice((mined, tuned))
        if chance.randrange(3):
            return _of_folder(sample, chance, _json_of(sample)), None
        files = dict(sample)
        for name in files:
            if name.endswith("0.parquet"):
                files[name] = _other_shard(chance, files[name])
        return files, None

    return [
        Reader(
            "corpus",
            lambda chance: (_of_corpus(chance, encoded), None),
            partial(_read_corpus, model=text_run),
        ),
        Reader(
            "encoding",
            partial(_unfinished, encoded),
            partial(_read_encoding, job=job),
            named=False,  # a message may name the shard of texts, which lies elsewhere
            writes=True,
        ),
        Reader(
            "candidates", lambda chance: (_of_corpus(chance, candidates), None), _read_candidates
        ),
        Reader("mining", of_mining, partial(_read_mining, mine=mine), writes=True),
        Reader("pair shards", _pair_shards, _read_pair_shards),
        Reader("growing texts", of(texts), _read_growing_texts, writes=True),
        Reader("growing items", of(items), _read_growing_items, writes=True),
        Reader("approximate", partial(_of_index, sample=faiss), _read_approximate),
        Reader("given vectors", _given_vectors, _read_given),
        Reader("bits", of(bits), partial(_read_bits, shape=numbers.shape)),
        Reader("trained", _trained, _read_trained),
        Reader("points", _points, _read_points),
        Reader("texts", _texts, _read_texts),
        Reader("saved set", partial(_saved_set, sample=saved), _read_saved_set),
    ]
