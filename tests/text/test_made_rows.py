"""Rows that are made of long documents: what they hold, beside which batches they stand, and that
nothing else moves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, divide
from tempera.core.definition import defined_losses
from tempera.engine import loop
from tempera.engine.faults import Fault
from tempera.errors import ConfigError
from tempera.experiments.record import Record
from tempera.experiments.template import Template
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.run.alarms import named
from tempera.run.train import train
from tempera.text.read.installed_python import InstalledPython
from tempera.text.read.pairs import Pairs
from tempera.text.retrieval import TextTask
from tempera.text.train.made_rows import MadeRows, SourceRows, Spans, cut

from ..conftest import WORDS, write_pairs
from ..run.test_resume import Stopped, left, stop_after


def long_pairs(folder: Path, words: int = 80) -> Path:
    """Pairs whose documents have so many words."""
    draw = random.Random(0)
    docs = [" ".join(draw.choice(WORDS) for _ in range(words)) for _ in range(160)]
    return write_pairs(
        folder / "long.jsonl", [{"query": " ".join(doc.split()[:3]), "doc": doc} for doc in docs]
    )


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs are enough for the rows of a source."""
    monkeypatch.setattr("tempera.text.train.made_rows.MANY", 10)


def options(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(path)},
        "tower": {"dimensions": 16, "vocabulary": 300, "drop_repeats": False},
        "objective": {"temperature": 0.1},
        "train": {
            "batch_size": 16,
            "num_train_epochs": 4,
            "evaluations": 1,
            "save_steps": 2,
            "made_rows": 4,
            **more,
        },
        "evaluation": {"queries": 16, "validation": 0, "bm25": False},
    }


def read(given: dict[str, Any], folder: Path) -> TextTask:
    return TextTask.read(build(configuration.of(given)), folder / "cache", folder / "vectors")


@pytest.mark.parametrize("length", [16, 17, 40, 200])
def test_a_span_and_the_rest_are_the_document(length: int) -> None:
    rows = Ragged.of([list(range(i * 1000, i * 1000 + length)) for i in range(50)])
    spans, rests = cut(rows, np.random.default_rng(0))
    starts = set()
    for i in range(50):
        row, span, rest = (each[i : i + 1].values.tolist() for each in (rows, spans, rests))
        at = span[0] - row[0]
        assert span == row[at : at + len(span)] and rest == row[:at] + row[at + len(span) :]
        assert 8 <= len(span) <= min(40, length // 2)
        starts.add((at == 0, at + len(span) == length))
    assert len(starts) > 1  # not all of them are beginnings, nor ends


def test_made_rows_stand_beside_the_pairs_of_the_first_steps_and_the_loss_is_the_defined_one(
    tmp_path: Path,
) -> None:
    given = options(long_pairs(tmp_path))
    made, task = build(configuration.of(given)), read(given, tmp_path)
    data, tower = task.data, task.data.tower.double()
    assert data.made.beside == 4 and data.made.count == 64
    numbers, used = data.made.kind.ids.tolist(), list[int]()
    for number, rows in enumerate(data.sampler(0, 4)):
        plain = data.batch(rows, number)
        assert data.made.batch(plain, number, Spans.until) is None
        beside = data.made.batch(plain, number, Spans.until - 0.01)
        assert len(plain) == len(rows) and 0 < len(beside) <= 64
        # A made row asks what no other row asks, and is of a document of its own.
        assert len(set(beside.query.ids.tolist())) == len(beside)
        assert len(set(beside.doc.ids.tolist())) == len(beside)
        for i in range(len(beside)):
            at = numbers.index(int(beside.doc.ids[i]))
            doc = data.texts.docs[at : at + 1].values.tolist()
            own = [side.rows[i : i + 1].values.tolist() for side in (beside.query, beside.doc)]
            assert sorted(own[0] + own[1]) == sorted(doc)
        used += beside.doc.ids.tolist()
        with torch.no_grad():
            embedded: Batch[Any] = beside.of(
                {r: tower.of(r)(side.rows) for r, side in beside.sides().items()}
            )
            embedded = replace(embedded, known=beside.known)
            losses = made.objective(embedded)
        assert losses.tolist() == pytest.approx(defined_losses(made.base, embedded), rel=1e-9)
    held = set(task.data.texts.split.pairs.ids("doc")[task.data.texts.split.test].tolist())
    assert used and not held & set(used)  # what is held out is not cut up


def test_processes_divide_one_batch_and_a_number_makes_the_same_rows(tmp_path: Path) -> None:
    data = read(options(long_pairs(tmp_path)), tmp_path).data
    (rows,) = data.sampler(1, 2)
    pairs = data.batch(rows, 1)
    whole, again, other = (data.made.batch(pairs, number, 0.0) for number in (1, 1, 2))
    assert torch.equal(whole.query.rows.values, again.query.rows.values)
    assert whole.query.ids.tolist() != other.query.ids.tolist()
    parts = [divide(whole, part, 3) for part in range(3)]
    assert torch.equal(
        torch.cat([part.query.rows.values for part in parts]), whole.query.rows.values
    )
    assert torch.equal(torch.cat([part.doc.ids for part in parts]), whole.doc.ids)


def test_a_run_with_made_rows_is_resumed_within_and_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = options(long_pairs(tmp_path), num_train_epochs=4, save_steps=1)
    caplog.set_level("INFO")
    whole = train(given, tmp_path / "whole")
    assert yaml.safe_load((whole.folder / "config.yaml").read_text())["train"]["made_rows"] == 4
    assert (
        "in the first 15 % of the steps, up to 64 rows a batch are made of documents" in caplog.text
    )
    for steps in (2, 9):
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            with pytest.raises(Stopped):
                train(given, tmp_path / f"run{steps}")
        assert left(train(given, tmp_path / f"run{steps}").folder) == left(whole.folder)


def test_auto_makes_rows_of_long_documents_for_static_towers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = (
        long_pairs(tmp_path),
        write_pairs(tmp_path / "short.jsonl", [{"query": f"{w} a", "doc": w} for w in WORDS]),
    )
    few = options(long, made_rows="auto")
    assert read(few, tmp_path / "few").data.made.beside == 0
    monkeypatch.setattr("tempera.text.train.made_rows.ENOUGH", 100)
    assert read(few, tmp_path / "a").data.made.beside == 4
    assert (
        read(options(short, made_rows="auto", batch_size=8), tmp_path / "b").data.made.beside == 0
    )
    assert read(options(long, made_rows=0), tmp_path / "c").data.made.beside == 0
    assert read(options(long, made_rows=2), tmp_path / "d").data.made.count == 32
    small = {
        **few,
        "tower": {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "vocabulary": 300},
    }
    assert read(small, tmp_path / "e").data.made.beside == 0
    weighed = {**few, "objective": {"temperature": 0.1, "corrections": ["log_q"]}}
    assert read(weighed, tmp_path / "f").data.made.beside == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"tower": {"kind": "transformer"}},
            "only a static tower reads a part of a text's tokens alone: give 0",
        ),
        (
            {"objective": {"corrections": ["log_q"]}},
            "log_q counts how often pairs bring a document",
        ),
        (
            {"objective": {"preset": "gist"}, "train": {"made_rows": 4, "guide": "a"}},
            "train.guide has no vectors of them",
        ),
        (
            {"objective": {"teacher": {}}, "train": {"made_rows": 4, "teacher": "a"}},
            "train.teacher has not compared them",
        ),
    ],
)
def test_made_rows_that_are_refused(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"train.made_rows.*{says}"):
        build(
            configuration.of(
                {"data": {"source": "pairs", "path": "p.csv"}, "train": {"made_rows": 4}, **more}
            )
        )


SOURCE = """
def rule_{i}():
    '''Count {word} of {other} once more, rule {i}.'''
    return "{word} {other} {i}"


def no_text_{i}(value):
    # So {word} and {other} are kept together.
    if value:
        return "{word} {other} {i}"
"""


@pytest.mark.usefixtures("many")
def test_functions_without_a_docstring_stand_beside_pairs_of_code(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for i in range(60):
        text = (
            SOURCE.replace("{i}", str(i))
            .replace("{word}", WORDS[i % 40])
            .replace("{other}", WORDS[(i * 7 + 3) % 40])
        )
        (source / f"m{i}.py").write_text(text)
    given = {**options(source, batch_size=8, made_rows=4), "data": {"path": str(source)}}
    given["evaluation"] = {"queries": 8, "validation": 0, "bm25": False}
    task = read(given, tmp_path)
    data, rows = task.data, next(iter(task.data.sampler(0, 1)))
    assert (
        data.made.beside == 4 and data.made.count == 32 and "ask for its code" in data.made.note()
    )
    plain = data.batch(rows, 0)
    beside = data.made.batch(plain, 0, SourceRows.until - 0.01)
    assert data.made.batch(plain, 0, SourceRows.until) is None and 0 < len(beside) <= 32
    ids = made_by_source(source).ids("doc")
    assert set(beside.doc.ids.tolist()) <= set(ids.tolist())
    # Name and comments of one function never meet.
    assert len(set(beside.doc.ids.tolist())) == len(beside)
    searched = task.showcase.searched()
    assert not set(ids.tolist()) & set(
        searched.documents["doc_id"].to_pylist()
    )  # code without its name
    few = {**given, "train": {**given["train"], "made_rows": "auto"}}
    assert read(few, tmp_path / "many").data.made.count == 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempera.text.train.made_rows.MANY", 20_000)
        assert read(few, tmp_path / "few").data.texts.made is None
        assert (
            read(given, tmp_path / "four").data.texts.made is None
        )  # a resolved number means what "auto" meant
    run = train(given, tmp_path / "run")
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["train"]["made_rows"] == 4


def test_a_fault_names_pairs_alone(tmp_path: Path) -> None:
    data = read(options(long_pairs(tmp_path)), tmp_path).data
    (rows,) = data.sampler(0, 1)
    fault = Fault(1, "loss", ((1,), (0, 3)), "")
    assert named(fault, data, 1) == f"{data.called(rows[[1]])[0]}, rows made of documents"
    assert named(Fault(1, "loss", ((), (0,)), ""), data, 1) == "rows made of documents"
    assert named(Fault(1, "loss", ((), ()), ""), data, 1) == ""
    whole = tuple(range(len(rows)))
    assert named(Fault(1, "loss", (whole, (0,)), ""), data, 1) == "all rows of batch 0"


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"objective": {"temperature": 0.1, "memory": 64, "pools": ["docs", "memory"]}}, 64),
        ({"objective": {"preset": "gist"}, "train": {"guide": "a run"}}, 0),
        ({"objective": {"preset": "gte", "matryoshka": [8, 16]}}, 64),
    ],
)
def test_runs_with_other_parts_take_made_rows_or_leave_them(
    more: dict[str, Any],
    count: int,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = options(long_pairs(tmp_path), made_rows="auto")
    given |= {**more, "train": {**given["train"], **more.get("train", {}), "num_train_epochs": 2}}
    if "guide" in given["train"]:
        given["train"]["guide"] = str(tiny_run)
    monkeypatch.setattr("tempera.text.train.made_rows.ENOUGH", 100)
    assert read(given, tmp_path).data.made.count == count
    run = train(given, tmp_path / "run")
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["train"]["made_rows"] == (
        4 if count else 0
    )


def test_made_rows_weigh_alike_beside_weighted_pairs(tmp_path: Path) -> None:
    path = long_pairs(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(
            json.dumps({**row, "weight": 0.001 * (i % 3 + 1)}) + "\n" for i, row in enumerate(rows)
        )
    )
    data = read(options(path), tmp_path).data
    (rows_of,) = data.sampler(0, 1)
    batch = data.batch(rows_of, 0)
    assert batch.weight is not None
    assert data.made.batch(batch, 0, 0.0).weight is None


def code(folder: Path, count: int = 60) -> Path:
    """A folder of functions with a docstring, each beside one without."""
    folder.mkdir()
    for i in range(count):
        text = (
            SOURCE.replace("{i}", str(i))
            .replace("{word}", WORDS[i % 40])
            .replace("{other}", WORDS[(i * 7 + 3) % 40])
        )
        (folder / f"m{i}.py").write_text(text)
    return folder


def made_by_source(folder: Path) -> Pairs:
    """The rows that a folder of Python files makes."""
    pairs, _ = InstalledPython((str(folder),), workers=1).read()
    assert pairs.made is not None
    return pairs.made


@pytest.mark.usefixtures("many")
def test_queries_that_are_held_out_ask_for_no_made_row(tmp_path: Path) -> None:
    source = code(tmp_path / "src")
    plain = {**options(source, batch_size=8, made_rows=4), "data": {"path": str(source)}}
    plain["evaluation"] = {"queries": 8, "validation": 4, "bm25": False}
    split = read(plain, tmp_path / "a").data.texts.split
    held = split.pairs.texts("query", np.concatenate([split.test, split.validation]))
    copies = "".join(
        f"def copy_{i}():\n    # {query}\n    x = {i}\n    return x\n"
        for i, query in enumerate(held)
    )
    (source / "z.py").write_text("def a():\n    'Read me.'\n\n" + copies)
    data = read(plain, tmp_path / "b").data
    assert data.texts.made is not None
    assert data.texts.split.pairs.made is None  # its texts are freed: the run needs their tokens
    asked = data.texts.split.pairs.ids("query")[
        [*data.texts.split.test, *data.texts.split.validation]
    ]
    assert set(asked.tolist()) & set(made_by_source(source).ids("query").tolist())
    assert not set(asked.tolist()) & set(data.texts.made.query_ids.tolist())


@pytest.mark.usefixtures("many")
def test_a_mixture_keeps_made_rows_unless_its_batches_are_of_one_source(tmp_path: Path) -> None:
    source, pairs = code(tmp_path / "src"), long_pairs(tmp_path)
    sources = [{"installed_python": {"roots": [str(source)]}}, {"pairs": {"path": str(pairs)}}]
    given = {**options(pairs, made_rows=4), "data": {"source": "mixture", "sources": sources}}
    data = read(given, tmp_path / "a").data
    assert data.texts.made is not None and data.made.count == 64
    single = {**given, "data": {**given["data"], "batches": "single"}}
    with pytest.raises(
        ConfigError, match=r"data\.batches=single takes each batch from one source: give 0"
    ):
        read(single, tmp_path / "b")


@pytest.mark.usefixtures("many")
def test_a_sweep_reads_made_rows_where_a_setting_has_some(tmp_path: Path) -> None:
    source = code(tmp_path / "src")
    base = {**options(source, made_rows=0, batch_size=8), "data": {"path": str(source)}}
    template = Template.of(base, [], None)
    for rows in (0, 4):
        values = {"train.made_rows": rows}
        plan = template.run(template.config(values), values, Record(values), 8)
        assert (
            plan.reference["train"]["made_rows"] == rows
        )  # runs with other rows read the data anew


def test_training_takes_made_rows_in_its_first_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, inner = list[int](), MadeRows.batch

    def counted(self: MadeRows, pairs: Any, number: int, progress: float) -> Any:
        batch = inner(self, pairs, number, progress)
        if number == len(sizes):  # the plan looks at the first batch, too
            sizes.append(0 if batch is None else len(batch))
        return batch

    monkeypatch.setattr(MadeRows, "batch", counted)
    learned, add = list[int](), loop.add_gradients

    def counting(towers: Any, objective: Any, batch: Batch[Any], *rest: Any) -> Any:
        learned.append(len(batch))
        return add(towers, objective, batch, *rest)

    monkeypatch.setattr(loop, "add_gradients", counting)
    train(options(long_pairs(tmp_path), max_steps=20, save_steps=100), tmp_path / "run")
    assert len(sizes) == 20 and all(sizes[:3]) and not any(sizes[3:])  # 15 % of 20 steps
    assert learned[1:6:2] == sizes[:3] and len(learned) == 20 + 3


def test_spans_of_a_document_differ_from_batch_to_batch(tmp_path: Path) -> None:
    data, spans = read(options(long_pairs(tmp_path)), tmp_path).data, dict[int, list[list[int]]]()
    for number, rows in enumerate(data.sampler(0, 6)):
        batch = data.made.batch(data.batch(rows, number), number, 0.0)
        for i in range(len(batch)):
            spans.setdefault(int(batch.doc.ids[i]), []).append(
                batch.query.rows[i : i + 1].values.tolist()
            )
    again = [each for each in spans.values() if len(each) > 1]
    assert len(again) > 50 and all(len({tuple(one) for one in each}) == len(each) for each in again)
