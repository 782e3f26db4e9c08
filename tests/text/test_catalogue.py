"""From pairs to batches: every distinct text once, features on disk, negatives with their
owners."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.arithmetic.ragged import Ragged
from tempera.engine.batches import Draws
from tempera.io.ids import content_id, given_ids
from tempera.text.read.pairs import Pairs
from tempera.text.read.sources import Given, PairsFile
from tempera.text.train.catalogue import Catalogue, stored
from tempera.text.train.mixture import Mixture

ROWS = [
    ("a", "x", ["u", "y"], 1.0),
    ("b", "y", [], 2.0),
    ("c", "x", ["u"], 0.5),
    ("a", "y", ["v", "w"], 3.0),
]


def pairs() -> Pairs:
    columns = dict(zip(("query", "doc", "negatives", "weight"), zip(*ROWS)))
    return Given.of(pa.table({name: list(column) for name, column in columns.items()})).read()[0]


def letters(texts: list[str]) -> Ragged:
    """A row is one token: the letter."""
    return Ragged.of([[ord(text)] for text in texts])


def test_documents_and_negatives_keep_the_ids_that_they_were_given(tmp_path: Path) -> None:
    """In a mixture of rows with ids of documents and negatives, of documents alone, of negatives
    alone, and without any."""
    both = {
        "query": ["a", "b"],
        "doc": ["x", "y"],
        "doc_id": [7, 8],
        "negatives": [["u", ""], ["v"]],
        "negative_ids": [[1, 2], [3]],
    }
    docs = {"query": ["c"], "doc": ["z"], "doc_id": ["z1"], "negatives": [["w"]]}
    negatives = {
        "query": ["d"],
        "doc": ["p"],
        "negatives": [["q", "r"]],
        "negative_ids": [["q1", "r1"]],
    }
    none = {"query": ["e", "f"], "doc": ["s", "t"]}
    sources = []
    for name, columns in {"both": both, "docs": docs, "negatives": negatives, "none": none}.items():
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        sources.append(PairsFile(path=str(tmp_path / f"{name}.parquet")))
    for folder in (None, tmp_path / "rows"):
        mixed = Mixture(sources).read(folder)[0]
        table = Catalogue.of(mixed).table()
        own = dict(zip(table["doc"].to_pylist(), table["given_doc_id"].to_pylist(), strict=True))
        assert own == dict(
            zip(
                "xyuvzwpqrst",
                ["7", "8", "1", "3", "z1", None, None, "q1", "r1", None, None],
                strict=True,
            )
        )
        keys = dict(zip(table["doc"].to_pylist(), table["doc_id"].to_pylist(), strict=True))
        assert keys["v"] == given_ids(pa.array(["3"]))[0] and keys["w"] == content_id("w")
    assert "given_doc_id" not in Catalogue.of(pairs()).table().column_names


@pytest.mark.parametrize("mapped", [False, True])
def test_a_batch_brings_the_negatives_of_its_rows(tmp_path: Path, mapped: bool) -> None:
    catalogue = Catalogue.of(pairs())
    assert catalogue.queries[:] == ["a", "b", "c"] and catalogue.docs[:] == [
        "x",
        "y",
        "u",
        "v",
        "w",
    ]
    assert catalogue.table()["place"].to_pylist() == [
        "data row 1",
        "data row 2",
        "data row 1",
        "data row 4",
        "data row 4",
    ]
    assert catalogue.table()["doc_id"].to_pylist() == [content_id(text) for text in "xyuvw"]
    sides = [
        stored(letters, texts, tmp_path / str(i)) if mapped else letters(texts[:])
        for i, texts in enumerate((catalogue.queries, catalogue.docs))
    ]
    examples = catalogue.examples(np.array([0, 2, 3]), *sides, Draws(count=4))
    batch = examples.batch(torch.tensor([2, 0]))  # the rows 3 and 0

    def read(side) -> list[str]:
        return [chr(value) for value in side.rows.values]

    assert (read(batch.query), read(batch.doc)) == (["a", "a"], ["y", "x"])
    assert read(batch.negatives) == ["v", "w", "u", "y"] and batch.negatives.owner.tolist() == [
        0,
        0,
        1,
        1,
    ]
    assert batch.negatives.ids.tolist() == [content_id(text) for text in "vwuy"]
    assert batch.weight.tolist() == [3.0, 1.0]
    assert sorted(batch.known[:1].values.tolist()) == sorted(content_id(text) for text in "xy")
    visits = {
        "x": 2,
        "y": 2,
        "u": 2,
        "v": 1,
        "w": 1,
    }  # as answers and as negatives of the three rows
    drawn = {"x": 1 / 2, "y": 1 / 2}  # uniform over documents that answer
    for side in (batch.doc, batch.negatives, batch.sampled):
        expected = [math.log(2 * visits[text] / 3 + 4 * drawn.get(text, 0)) for text in read(side)]
        assert side.logq.tolist() == pytest.approx(expected)


def test_features_on_disk_are_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempera.text.train.catalogue._BLOCK", 3)
    texts = [f"{'ab' * (i % 5)}" for i in range(20)]

    def features(part) -> Ragged:
        assert len(part) <= 3
        return Ragged.of([[ord(letter) for letter in text] for text in part])

    found = stored(features, texts, tmp_path / "deep" / "tokens")
    whole = Ragged.of([[ord(letter) for letter in text] for text in texts])
    assert found.values.dtype == torch.int32 and found.offsets.equal(whole.offsets)
    assert found.values.long().equal(whole.values)
    taken = found[torch.tensor([19, 3, 0])]
    assert taken.values.dtype == torch.int64 and taken.values.equal(
        whole[torch.tensor([19, 3, 0])].values
    )
    assert len(stored(features, [""] * 4, tmp_path / "none").values) == 0


def test_the_tokenizer_reads_training_texts_only() -> None:
    catalogue = Catalogue.of(pairs())
    assert sorted(catalogue.trained(np.array([1, 2]))) == ["b", "c", "u", "x", "y"]


def test_chances_of_rows_weigh_their_documents() -> None:
    catalogue = Catalogue.of(pairs())
    examples = catalogue.examples(
        np.arange(4), letters(catalogue.queries[:]), letters(catalogue.docs[:]), Draws()
    )
    from dataclasses import replace

    weighed = replace(examples, chance=torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert weighed.doc_frequency.tolist() == pytest.approx([0.4, 0.6, 0, 0, 0])
    assert weighed.doc_visits.tolist() == pytest.approx([0.4, 0.7, 0.4, 0.4, 0.4])
    assert weighed.query_frequency.tolist() == pytest.approx([0.5, 0.2, 0.3])
