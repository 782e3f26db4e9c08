"""Several processes evaluate a model together, to the figures of one."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import worlds

from tempera.artifacts.encoded_corpus import encode
from tempera.finished.held_out_events import evaluate_held_out_events
from tempera.finished.held_out_set import evaluate_held_out
from tempera.parallel.distributed import Group
from tempera.recommend.judge import full_catalogue
from tempera.run.train import train
from tempera.text.judge.divided_ranking import ALIGNED, nearest_of_all
from tempera.text.judge.evaluate import evaluate
from tempera.towers.transformer import Transformer

from ..conftest import planted

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retrieval set of 300 documents, some of them with the words of another, and 90 queries."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    rows = planted(260, seed=3)
    texts = [row["doc"] for row in rows]
    texts += [" ".join(reversed(text.split())) for text in texts[:40]]
    documents = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    queries = [json.dumps({"_id": f"q{i}", "text": rows[i]["query"]}) for i in range(90)]
    judgements = [f"q{i}\td{i}\t1" for i in range(90)]
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n"
    )
    return folder


def graded(folder: Path) -> Path:
    """Seven graded pairs of sentences."""
    draw = random.Random(0)
    lines = []
    for row in planted(7, seed=4):
        pair = {"sentence1": row["query"], "sentence2": row["doc"], "score": draw.random()}
        lines.append(json.dumps(pair))
    path = folder / "graded.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def defined(queries: Any, docs: Any, k: int) -> list[list[int]]:
    """The k nearest documents in plain loops, equal ones in the order of the corpus."""
    ranked = []
    for query in queries.astype(np.float64):
        scores = [round(float(query @ doc), 9) for doc in docs.astype(np.float64)]
        ranked.append(sorted(range(len(docs)), key=lambda i: (-scores[i], i))[:k])
    return ranked


def nearest_in_parts(group: Group, queries: Any, docs: Any, k: int) -> list[list[int]]:
    part = group.part(len(docs), ALIGNED)
    rows = nearest_of_all(queries.numpy(), docs.numpy()[part], len(docs), k, group).tolist()
    return list(rows)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("count", [5, 3 * ALIGNED + 7])  # with processes without documents
def test_the_nearest_of_all_parts_are_those_of_the_definition(size: int, count: int) -> None:
    draw = np.random.default_rng(count)
    # Whole numbers, of which many sums are equal, in any order of additions.
    queries = draw.integers(-2, 3, (7, 6)).astype(np.float32)
    docs = draw.integers(-2, 3, (count, 6)).astype(np.float32)
    given = torch.from_numpy(queries), torch.from_numpy(docs), 20
    for ranked in worlds.world(size, nearest_in_parts, *given):
        assert ranked == defined(queries, docs, 20)


def arrays_of_ranks(group: Group) -> list[Any]:
    parts = [group.part(7, 3), group.part(2), group.part(0)]
    rows = np.arange(7, dtype=np.int64)[parts[0]]
    whole = group.all_gather_array(np.stack([rows, rows * 2], 1))
    empty = group.all_gather_array(np.empty((group.rank, 0)))
    return [[(part.start, part.stop) for part in parts], whole.tolist(), list(empty.shape)]


def test_parts_of_rows_and_their_gathering() -> None:
    first, second, third = worlds.world(3, arrays_of_ranks)
    assert [each[0][0] for each in (first, second, third)] == [(0, 3), (3, 6), (6, 7)]
    assert [each[0][1] for each in (first, second, third)] == [(0, 0), (0, 1), (1, 2)]
    assert [each[0][2] for each in (first, second, third)] == [(0, 0)] * 3
    for each in (first, second, third):
        assert each[1] == [[row, 2 * row] for row in range(7)]
        assert each[2] == [3, 0]


def scores_of(findings: Any) -> list[Any]:
    rows = []
    for finding in findings:
        for row in finding.per_query().to_pylist():
            rows.append(list(row.values()))
    return rows


def evaluated(group: Group, model: str, paths: list[str], options: dict[str, Any]) -> list[Any]:
    return scores_of(evaluate(model, *paths, group=group, **options))


@pytest.mark.parametrize("size", [2, 3])
def test_texts_have_the_scores_of_one_process(
    size: int, tiny_run: Path, beir: Path, pairs_file: Path, tmp_path: Path
) -> None:
    paths = [str(beir), str(pairs_file), str(graded(tmp_path))]
    options = {"bm25": True, "exclude_self": True}
    expected = scores_of(evaluate(tiny_run, *paths, **options))
    assert 0.1 < np.mean([row[-1] for row in expected if row[3] == "ndcg@10"]) < 1
    for scores in worlds.world(size, evaluated, str(tiny_run), paths, options):
        assert scores == expected


def test_an_encoded_corpus_gives_each_process_its_documents(
    tiny_run: Path, beir: Path, tmp_path: Path
) -> None:
    encode(tiny_run, beir / "corpus.jsonl", tmp_path / "vectors", columns=["text"])
    expected = scores_of(evaluate(tiny_run, beir))
    options = {"index": str(tmp_path / "vectors")}
    for scores in worlds.world(2, evaluated, str(tiny_run), [str(beir)], options):
        assert scores == expected


def held_out(group: Group, run: str) -> list[Any]:
    return scores_of([evaluate_held_out(run, group=group)])


def test_held_out_queries_have_the_scores_of_one_process(tiny_run: Path) -> None:
    expected = scores_of([evaluate_held_out(tiny_run)])
    for scores in worlds.world(2, held_out, str(tiny_run)):
        assert scores == expected


def held_out_events(group: Group, run: str) -> list[Any]:
    ranked = full_catalogue._count
    counted = []

    def counting(*given: Any) -> Any:
        counted.append(len(given[2]))
        return ranked(*given)

    full_catalogue._count = counting  # type: ignore[assignment]
    finding = evaluate_held_out_events(run, group=group)
    (protocol,) = finding.reached["trained"].values()
    return [scores_of([finding]), protocol.ranks.top.tolist(), sum(counted)]


def test_a_recommender_has_the_scores_of_one_process(
    recommender: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommender["evaluation"]["baselines"] = True
    run = train(recommender, tmp_path / "run")
    monkeypatch.setattr(full_catalogue, "_ROWS", (4, 16))  # several blocks of the 60 users
    finding = evaluate_held_out_events(run.folder)
    (protocol,) = finding.reached["trained"].values()
    processes = worlds.world(2, held_out_events, str(run.folder))
    for scores, top, _ in processes:
        assert scores == scores_of([finding])
        assert top == protocol.ranks.top.tolist()
    # Two systems: each process ranks for its part of the users.
    assert [ranked for _, _, ranked in processes] == [2 * 32, 2 * 28]


def launched(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(
        [sys.executable, *TORCHRUN, *command],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )


@pytest.mark.long
def test_torchrun_prints_and_writes_the_evaluation_of_one_process(
    tiny_run: Path, beir: Path, tmp_path: Path, tempera: Any
) -> None:
    given = ["evaluate", str(tiny_run), str(beir), "--bm25", "--json", "--per-query"]
    one = tempera(*given, str(tmp_path / "one.parquet"))
    done = launched("-m", "tempera", *given, str(tmp_path / "two.parquet"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout) == one.document
    tables = [parquet.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two")]
    assert tables[0].equals(tables[1])
    again = launched("-m", "tempera", *given, str(tmp_path / "two.parquet"))
    assert again.returncode != 0 and "two.parquet" in again.stderr


@pytest.mark.long
def test_torchrun_evaluates_a_transformer_up_to_rounding(
    beir: Path, tmp_path: Path, tempera: Any
) -> None:
    pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    texts = [row["doc"] for row in planted(200)]
    Transformer(layers=2, width=32, heads=2, vocabulary=120).build(texts).save(tmp_path / "model")
    given = ["evaluate", str(tmp_path / "model"), str(beir)]
    done = launched("-m", "tempera", *given)
    assert done.returncode == 0, done.stderr
    assert done.stdout == tempera(*given).out


# `tempera` whose process of rank 1 is killed while it reads documents.
KILLED = """
import os, signal
from tempera.cli import main
from tempera.text.judge import tasks

read = tasks.encode_part

def killed(encode, texts, what, part):
    if what == "documents" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return read(encode, texts, what, part)

tasks.encode_part = killed
main()
"""


@pytest.mark.long
def test_the_others_end_with_one_line_if_a_process_dies(
    tiny_run: Path, beir: Path, tmp_path: Path
) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [str(tmp_path / "killed.py"), "evaluate", str(tiny_run), str(beir)]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(2):  # as a scheduler starts them: nobody watches over them
        environment = {**os.environ, **ENVIRONMENT, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        environment |= {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        processes.append(process)
    try:
        streams = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode == 2 and processes[1].returncode == -9
    lines = [line for line in streams[0][1].splitlines() if line.startswith("tempera: ")]
    assert len(lines) == 1 and "rank 0 of 2 lost the other ranks during" in lines[0]
    assert streams[0][0] == ""
