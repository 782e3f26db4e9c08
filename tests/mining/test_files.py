"""From a file of pairs to a file of negatives, with a stop in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from tempera.data.hashing import content_id
from tempera.errors import OutputError
from tempera.mining import files
from tempera.mining.files import Task, mine_file
from tempera.mining.hard_negatives import Mining
from tempera.towers.saved import load

WORDS = ["ka", "ban", "zu", "mori", "tel", "fin", "gar", "hos", "lup", "dem"]


@pytest.fixture
def pairs() -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(0)
    queries = [" ".join(generator.choice(WORDS, 3)) for _ in range(40)]
    docs = [" ".join(generator.choice(WORDS, 6)) for _ in range(40)]
    return [*queries, queries[0], queries[1] + "  "], [*docs, docs[7], docs[3]]


def test_rows_hold_what_the_model_says(tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]]) -> None:
    model, output = tiny_run / "model", tmp_path / "mined.parquet"
    corpus = [pairs[0][5], "hos hos", pairs[1][2] + " "]
    report = mine_file(model, Task.of(*pairs, corpus), output, Mining(4, 1, 30, relative_margin=0.01))
    rows = parquet.read_table(output).to_pylist()
    read = load(model)
    answers: dict[str, set[str]] = {}
    for query, doc in zip(*pairs):
        answers.setdefault(" ".join(query.split()), set()).add(doc)
    assert [row["query"] for row in rows] == list(answers)
    documents = [*dict.fromkeys(pairs[1]), pairs[0][5], "hos hos"]
    for row in rows:
        assert set(row["positives"]) == answers[row["query"]]
        assert len(row["negatives"]) <= 4 and not {*row["negatives"]} & {*row["positives"], row["query"]}
        for role in ("positive", "negative"):
            texts = row[f"{role}s"]
            assert row[f"{role}_ids"] == [content_id(text) for text in texts]
            expected = (read(texts) @ read([row["query"]])[0]).tolist() if texts else []
            assert row[f"{role}_scores"] == pytest.approx(expected, abs=1e-5)
        least = min(row["positive_scores"])
        scores = read(documents).astype(np.float64) @ read([row["query"]])[0]
        candidates = [i for i in np.argsort(-scores, kind="stable") if documents[i] not in answers[row["query"]]]
        ranked = [documents[i] for i in candidates if documents[i] != row["query"]]
        assert sorted(row["negative_ranks"]) == row["negative_ranks"]
        for text, score, rank in zip(row["negatives"], row["negative_scores"], row["negative_ranks"]):
            assert 1 < rank <= 30 and score <= least - 0.01 * abs(least) + 1e-5
            assert scores[documents.index(ranked[rank - 1])] == pytest.approx(score, abs=1e-5), text
    assert report.queries == len(rows) == 40 and report.answers == 42 and report.itself == 1
    assert report.kept == sum(len(row["negatives"]) for row in rows) > 0
    assert report.short == sum(len(row["negatives"]) < 4 for row in rows) == sum(report.short_by.values())


def test_a_stopped_run_goes_on(
    tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mining.files", "mining.hard_negatives"):
        monkeypatch.setattr(f"tempera.{name}.BLOCK", 7)
    task, options, model = Task.of(*pairs), Mining(3, relative_margin=0.0), tiny_run / "model"
    whole = mine_file(model, task, tmp_path / "whole.parquet", options)
    written = files._write_whole
    made: list[str] = []

    def stops(table: Any, path: Path) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(path.name)
        written(table, path)

    output = tmp_path / "stopped.parquet"
    monkeypatch.setattr(files, "_write_whole", stops)
    with pytest.raises(KeyboardInterrupt):
        mine_file(model, task, output, options)
    assert not output.exists()
    monkeypatch.setattr(files, "_write_whole", lambda table, path: (made.append(path.name), written(table, path)))
    assert mine_file(model, task, output, options) == whole
    assert made == [f"{number:06d}.parquet" for number in range(6)]
    assert parquet.read_table(output) == parquet.read_table(tmp_path / "whole.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.parquet", "vectors", "whole.parquet"]
    with pytest.raises(OutputError, match="--overwrite"):
        mine_file(model, task, output, options)
    assert mine_file(model, task, output, Mining(2), overwrite=True) != whole


def test_the_command(tempera: Any, tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]]) -> None:
    given = tmp_path / "pairs.jsonl"
    given.write_text("".join(json.dumps({"query": q, "positive": d}) + "\n" for q, d in zip(*pairs)))
    output = tmp_path / "mined.parquet"
    answer = tempera("mine", tiny_run, given, "-o", output, "-n", "2", "--share", "0.9", "--json")
    assert answer.code == 0, answer.err
    assert answer.document["queries"] == 40 and set(answer.document["dropped"]) == {"relative margin"}
    assert len(parquet.read_table(output)) == 40
    again = tempera("mine", tiny_run, given, "-o", output)
    assert again.code == 2 and "exists; give another file, or --overwrite" in again.err
    assert "negatives of" in tempera("mine", tiny_run, given, "-o", output, "--overwrite").out
    wrong = tempera("mine", tiny_run, given, "-o", tmp_path / "x", "-n", "9", "--depth", "3")
    assert wrong.code == 2 and "raise depth" in wrong.err
