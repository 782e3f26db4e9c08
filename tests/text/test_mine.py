"""From a file of pairs to a file of negatives, with a stop in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from tempera.errors import ConfigError, DataError, OutputError
from tempera.io.ids import content_id
from tempera.mining.hard_negatives import Mining
from tempera.text.judge.tasks import RetrievalTask
from tempera.text.read.sources import Given, PairsFile
from tempera.text.train import mine as files
from tempera.text.train.mine import mine
from tempera.text.train.mining_task import MiningTask
from tempera.text.train.unpaired_texts import Documents
from tempera.towers.saved import load

WORDS = ["ka", "ban", "zu", "mori", "tel", "fin", "gar", "hos", "lup", "dem"]


@pytest.fixture
def pairs() -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(0)
    queries = [" ".join(generator.choice(WORDS, 3)) for _ in range(40)]
    docs = [" ".join(generator.choice(WORDS, 6)) for _ in range(40)]
    return [*queries, queries[0], queries[1] + "  "], [*docs, docs[7], docs[3]]


def test_rows_hold_what_the_model_says(
    tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]]
) -> None:
    model, output = tiny_run / "model", tmp_path / "mined.parquet"
    corpus = [pairs[0][5], "hos hos", pairs[1][2] + " "]
    report = mine(
        model, MiningTask.of(*pairs, corpus), output, Mining(4, 1, 30, relative_margin=0.01)
    )
    rows = parquet.read_table(output).to_pylist()
    read = load(model)
    answers: dict[str, set[str]] = {}
    for query, doc in zip(*pairs):
        answers.setdefault(" ".join(query.split()), set()).add(doc)
    assert [row["query"] for row in rows] == list(answers)
    documents = [*dict.fromkeys(pairs[1]), pairs[0][5], "hos hos"]
    for row in rows:
        assert set(row["positives"]) == answers[row["query"]]
        assert len(row["negatives"]) <= 4 and not {*row["negatives"]} & {
            *row["positives"],
            row["query"],
        }
        for role in ("positive", "negative"):
            texts = row[f"{role}s"]
            assert row[f"{role}_ids"] == [content_id(text) for text in texts]
            expected = (read(texts) @ read([row["query"]])[0]).tolist() if texts else []
            assert row[f"{role}_scores"] == pytest.approx(expected, abs=1e-5)
        least = min(row["positive_scores"])
        scores = read(documents).astype(np.float64) @ read([row["query"]])[0]
        candidates = [
            i
            for i in np.argsort(-scores, kind="stable")
            if documents[i] not in answers[row["query"]]
        ]
        ranked = [documents[i] for i in candidates if documents[i] != row["query"]]
        assert sorted(row["negative_ranks"]) == row["negative_ranks"]
        for text, score, rank in zip(
            row["negatives"], row["negative_scores"], row["negative_ranks"]
        ):
            assert 1 < rank <= 30 and score <= least - 0.01 * abs(least) + 1e-5
            assert scores[documents.index(ranked[rank - 1])] == pytest.approx(score, abs=1e-5), text
    assert report.queries == len(rows) == 40 and report.answers == 42 and report.itself == 1
    assert report.kept == sum(len(row["negatives"]) for row in rows) > 0
    assert (
        report.short
        == sum(len(row["negatives"]) < 4 for row in rows)
        == sum(report.short_by.values())
    )


def test_a_stopped_run_goes_on(
    tiny_run: Path,
    tmp_path: Path,
    pairs: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("text.train.mine", "mining.hard_negatives"):
        monkeypatch.setattr(f"tempera.{name}.BLOCK", 7)
    task, options, model = MiningTask.of(*pairs), Mining(3, relative_margin=0.0), tiny_run / "model"
    whole = mine(model, task, tmp_path / "whole.parquet", options)
    new_file, made = files.new_file, list[str]()

    def stops(path: Path) -> Any:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(path.name)
        return new_file(path)

    output = tmp_path / "stopped.parquet"
    monkeypatch.setattr(files, "new_file", stops)
    with pytest.raises(KeyboardInterrupt):
        mine(model, task, output, options)
    assert not output.exists()
    monkeypatch.setattr(files, "new_file", lambda path: (made.append(path.name), new_file(path))[1])
    assert mine(model, task, output, options) == whole
    assert made == [*(f"{number:06d}.parquet" for number in range(6)), output.name]
    assert parquet.read_table(output) == parquet.read_table(tmp_path / "whole.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "stopped.parquet",
        "vectors",
        "whole.parquet",
    ]
    with pytest.raises(OutputError, match="--overwrite"):
        mine(model, task, output, options)
    assert mine(model, task, output, Mining(2), overwrite=True) != whole


def test_the_command(
    tempera: Any, tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]]
) -> None:
    given = tmp_path / "pairs.jsonl"
    given.write_text(
        "".join(json.dumps({"query": q, "positive": d}) + "\n" for q, d in zip(*pairs))
    )
    output = tmp_path / "mined.parquet"
    answer = tempera(
        "mine", tiny_run, given, "-o", output, "-n", "2", "--relative-margin", "0.1", "--json"
    )
    assert answer.code == 0, answer.err
    assert answer.document["queries"] == 40 and set(answer.document["dropped"]) == {
        "relative margin"
    }
    assert len(parquet.read_table(output)) == 40
    again = tempera("mine", tiny_run, given, "-o", output)
    assert again.code == 2 and "exists; give another file, or --overwrite" in again.err
    assert "negatives of" in tempera("mine", tiny_run, given, "-o", output, "--overwrite").out
    for text in (given, tmp_path / ".." / tmp_path.name / given.name):
        itself = tempera("mine", tiny_run, given, "-o", text, "--overwrite")
        assert (
            itself.code == 2 and "is read by this command and is never replaced by it" in itself.err
        )
    assert given.read_text().startswith('{"query"')
    wrong = tempera(
        "mine", tiny_run, given, "-o", tmp_path / "x.parquet", "-n", "9", "--depth", "3"
    )
    assert wrong.code == 2 and "raise depth" in wrong.err


def test_nothing_is_written_into_a_run_or_a_model(
    tempera: Any, tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    run, model = (
        shutil.copytree(tiny_run, tmp_path / "run"),
        shutil.copytree(tiny_run / "model", tmp_path / "model"),
    )
    (run / "words.parquet").write_text("of the run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for output in (
        run / "model" / "x.parquet",
        run / "words.parquet",
        run / "new.csv",
        model / "new" / "x.parquet",
    ):
        for command in (
            ["mine", run, pairs_file, "--cross-encoder", model, "-o"],
            ["evaluate", run, pairs_file, "--against", model, "--per-query"],
            ["evaluate", run, "--against", model, "--per-query"],
        ):
            refused = tempera(*command, output, "--overwrite")
            where = run if output.is_relative_to(run) else model
            assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
            assert (
                f"{output} is in {where}" in refused.err and "give a file outside it" in refused.err
            )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_roles_of_columns_are_given_as_in_training(
    tempera: Any, tiny_run: Path, tmp_path: Path
) -> None:
    rows = [{"title": f"ka {word}", "body": f"zu {word} tel", "year": "1"} for word in WORDS]
    given = tmp_path / "pairs.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    command = ["mine", tiny_run, given, "-o", tmp_path / "mined.parquet", "-n", "1", "--json"]
    assert "no column that is usual for a query" in tempera(*command).err
    roles = ["data.query=title", "data.doc=body"]
    unknown = tempera(*command, *roles, "data.metadata=[]").err
    assert "column 'year' has no usual name" in unknown and "data.metadata=[year]" in unknown
    wrong = tempera(*command, "data.qery=title")
    assert (
        wrong.code == 2
        and "data.qery: no such option" in wrong.err
        and "Did you mean query?" in wrong.err
    )
    answer = tempera(*command, *roles, "data.doc_prompt='of: '")
    assert answer.code == 0, answer.err
    assert answer.document["queries"] == 10 and answer.document["left_out"] == {"repeated pairs": 1}
    assert parquet.read_table(tmp_path / "mined.parquet")["positives"][3].as_py() == [
        "of: zu mori tel"
    ]
    nothing = tempera("mine", tiny_run, "data.query=title", "-o", "x").err
    assert "give a table of pairs or a BEIR folder with data.query=title" in nothing
    assert (
        "give one table of pairs or BEIR folder, not 2"
        in tempera("mine", tiny_run, given, given, "-o", "x").err
    )


def test_documents_of_one_given_id_are_one(tmp_path: Path) -> None:
    rows = [("a", "x", "1"), ("b", "x, again", "1"), ("c", "y", "2")]
    names = ("question", "document", "document_id")
    file = tmp_path / "pairs.jsonl"
    for more in ({}, {"year": 1}):
        file.write_text("".join(json.dumps(dict(zip(names, row)) | more) + "\n" for row in rows))
        task = MiningTask.read(file, Given(metadata=("*",)))
        assert task.docs.texts == ["x", "y"] and [side.tolist() for side in task.answers] == [
            [0, 1, 2],
            [0, 0, 1],
        ]
    by_content = MiningTask.read(file, Given(metadata=("*", "document_id")))
    assert by_content.docs.texts == ["x", "x, again", "y"]


def test_a_beir_folder(tempera: Any, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    docs = [
        {"_id": f"d{i}", "title": word, "text": f"{word} of {i}"} for i, word in enumerate(WORDS)
    ]
    queries = [{"_id": f"q{i}", "text": f"{word} {i}"} for i, word in enumerate(WORDS[:4])]
    for name, rows in (("corpus", docs), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "train.tsv").write_text(
        "q0\td0\t1\nq0\td1\t2\nq0\td2\t0\nq1\td1\t1\nq3\td9\t0\n"
    )
    task = MiningTask.read(folder)
    texts = [f"{row['title']} {row['text']}" for row in docs]
    assert task.queries.texts == ["ka 0", "ban 1"] and sorted(task.docs.texts) == sorted(texts)
    asked, right = task.answers
    assert {(task.queries.texts[q], task.docs.texts[d]) for q, d in zip(asked, right)} == {
        ("ka 0", texts[0]),
        ("ka 0", texts[1]),
        ("ban 1", texts[1]),
    }
    assert task.left_out == {
        "queries that the split does not name": 1,
        "queries without a relevant document": 1,
        "judgements of queries without a relevant document": 1,
    }
    command = [
        "mine",
        tiny_run,
        folder,
        "-o",
        tmp_path / "mined.parquet",
        "-n",
        "8",
        "--relative-margin",
        "-8",
        "--json",
    ]
    answer = tempera(*command)
    assert answer.code == 0, answer.err
    assert answer.document["candidates"] == 8 + 9  # the whole corpus less what answers
    assert answer.document["left_out"] == task.left_out
    for row in parquet.read_table(tmp_path / "mined.parquet").to_pylist():
        assert {*row["negatives"]} <= {*texts} - {*row["positives"]}
    assert "remove the options data.ROLE" in tempera(*command, "data.query=text", "--overwrite").err
    assert "no such file" in tempera(*command, "--split", "dev", "--overwrite").err
    assert MiningTask.read(folder, corpus=folder).docs.texts == task.docs.texts


def test_a_corpus_needs_no_queries(tmp_path: Path) -> None:
    pairs, corpus = tmp_path / "pairs.jsonl", tmp_path / "corpus.jsonl"
    pairs.write_text('{"query": "a", "doc": "x"}\n')
    for name, value in (("text", "y"), ("passage", "y"), ("positives", ["y", "x"])):
        corpus.write_text(json.dumps({"id": 1, name: value}) + "\n")
        assert MiningTask.read(pairs, corpus=corpus).docs.texts == ["x", "y"]
    for row, says in (
        ({"id": "1"}, "no column that is usual for a doc"),
        ({"text": "y", "doc": "z"}, "2 columns"),
    ):
        corpus.write_text(json.dumps(row))
        with pytest.raises(DataError, match=says):
            MiningTask.read(pairs, corpus=corpus)
    corpus.write_text('{"text": "y"}\n{"text": " "}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl, row 2: column 'text' has no text"):
        MiningTask.read(pairs, corpus=corpus)


def test_the_output_is_parquet_of_one_process(
    tiny_run: Path, tmp_path: Path, pairs: tuple[list[str], list[str]]
) -> None:
    from tempera.io.lock import alone

    with pytest.raises(OutputError, match=r"mined.jsonl; give a name that ends in .parquet"):
        mine(tiny_run, MiningTask.of(*pairs), tmp_path / "mined.jsonl")
    output = tmp_path / "mined.parquet"
    with (
        alone(tmp_path / ".mined.parquet.lock", ""),
        pytest.raises(OutputError, match="another process is writing it"),
    ):
        mine(tiny_run, MiningTask.of(*pairs), output)
    with pytest.raises(
        ConfigError, match=r"mine: options is a Mining or None, not \{'negatives': 3\}"
    ):
        mine(tiny_run, MiningTask.of(*pairs), output, {"negatives": 3})  # type: ignore[arg-type]
    table = tmp_path / "vectors" / "pairs.csv"
    table.parent.mkdir()
    table.write_text("query,doc\na,b\n")
    with pytest.raises(
        ConfigError, match="the split 'dev' is of a BEIR folder, and none is given: drop it"
    ):
        mine(tiny_run, table, output, split="dev")
    with pytest.raises(ConfigError, match="roles is a Roles or None, not 'query'"):
        mine(tiny_run, table, output, roles="query")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nope"):
        mine(tiny_run, MiningTask.of(*pairs), output, faiss="nope", cache=tmp_path / "vectors")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_negatives_of_the_table_are_candidates(tmp_path: Path) -> None:
    rows = [
        {"query": "a", "doc": "x", "negatives": ["far", "x"]},
        {"query": "b", "doc": "y", "negatives": []},
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert MiningTask.read(tmp_path / "pairs.jsonl").docs.texts == ["x", "y", "far"]


def test_columns_without_a_role_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("query,doc,kind\na,x,1\n", encoding="utf-8")
    assert MiningTask.read(tmp_path / "pairs.csv").docs.texts == ["x"]


def test_columns_are_known_by_their_texts_to_all_that_read_a_table(
    tempera: Any, tiny_run: Path, tmp_path: Path
) -> None:
    rows = [
        f"{i},how to {word} a file,read all that {word} says of files and folders"
        for i, word in enumerate(WORDS)
    ]
    (path := tmp_path / "faq.csv").write_text("\n".join(["id,heading,section", *rows]))
    run = shutil.copytree(tiny_run, tmp_path / "run")
    said = f"{path}: pairs\n  heading  read as query  by its texts\n  section  read as doc    by its texts"
    output = tmp_path / "mined.parquet"
    for command in (["evaluate", run], ["mine", run, "-o", output, "-n", "1"], ["calibrate", run]):
        answer = tempera(*command, path)
        assert answer.code == 0 and answer.err.count("by its texts") == 2 and said in answer.err, (
            answer.err
        )
    assert parquet.read_table(output)["query"].to_pylist()[0] == "how to ka a file"
    assert (
        RetrievalTask.pairs(path).queries["text"].to_pylist() == MiningTask.read(path).queries.texts
    )
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"{word} {word}"}) + "\n" for word in WORDS))
    real, _ = Documents(str(texts), validation=str(path)).read()
    assert set(RetrievalTask.pairs(path).queries["text"].to_pylist()) <= set(real.texts("query"))
    with pytest.raises(
        DataError, match="no column that is usual for a query"
    ):  # strict: nothing is left unread
        PairsFile(str(path)).read()
