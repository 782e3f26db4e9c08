"""A mixture from its files to its batches: each source's prompt, and the temperature of its
batches, against the definition."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.core.definition import defined_losses
from tempera.core.presets import mnr
from tempera.errors import ConfigError, DataError
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.run.train import train
from tempera.text.read.beir import write_beir
from tempera.text.read.sources import BeirFolder, PairsFile
from tempera.text.retrieval import TextTask
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.mixture import Mixture

TEMPERATURES = (0.02, None, 0.3)


def mixture(folder: Path, **more: Any) -> dict[str, Any]:
    """Three sources of 60 pairs."""
    files = [folder / f"{i}.jsonl" for i in range(3)]
    for file in files:
        rows = [
            {"query": f"{file.stem}{a}{b} of it", "doc": f"{file.stem}{a}{b} and {a}"}
            for a in "abcdef"
            for b in "uvwxyzklmn"
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [
        {"pairs": {"path": str(file), "query_prompt": f"{i}: "}} for i, file in enumerate(files)
    ]
    return {
        "data": {
            "source": "mixture",
            "sources": sources,
            "batches": "single",
            "temperatures": TEMPERATURES,
            **more,
        },
        "tower": {"dimensions": 8, "vocabulary": 300},
        "objective": {"temperature": {"value": 0.1, "learnable": True}},
        "train": {"batch_size": 8, "max_steps": 8, "evaluations": 0},
        "evaluation": {"queries": 20, "bm25": False},
    }


def test_every_batch_has_its_source_s_prompt_and_temperature(tmp_path: Path) -> None:
    made = build(configuration.of(mixture(tmp_path)))
    task = TextTask.read(made, tmp_path / "cache", tmp_path / "vectors")
    tower, seen = task.data.tower.double(), set()
    origin = task.data.texts.split.pairs.table["source"].to_numpy()[task.data.texts.split.train]
    for number, rows in enumerate(task.data.sampler(0, 12)):
        (source,) = set(origin[rows.numpy()].tolist())
        seen.add(source)
        texts = [
            task.data.texts.split.pairs.texts("query", task.data.texts.split.train[[row]])[0]
            for row in rows.tolist()
        ]
        assert all(text.startswith(f"{source}: ") for text in texts)
        batch = task.data.batch(rows, number)
        assert batch.temperature == TEMPERATURES[source]
        with torch.no_grad():
            batch = batch.of(
                {role: tower.of(role)(side.rows) for role, side in batch.sides().items()}
            )
            losses = made.objective(batch)
        plain = mnr(
            TEMPERATURES[source] or 0.1, masks=made.objective.masks
        )  # as a run of this source alone has it
        assert losses.tolist() == pytest.approx(
            defined_losses(plain, replace(batch, temperature=None)), rel=1e-9
        )
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("beir_first", [True, False])
def test_ids_that_two_sources_give_to_other_texts_are_two_documents(
    beir_first: bool, tmp_path: Path
) -> None:
    """Of tables and BEIR folders in either order; the same text under the same id is one."""
    (tmp_path / "beir").mkdir()
    write_beir(
        tmp_path / "beir",
        {"1": "one", "2": "two", "3": "same"},
        {"q": "asks"},
        {"train": (["q"] * 3, ["1", "2", "3"], [1] * 3)},
    )
    rows = {
        "query": ["a", "b", "c"],
        "doc": ["other one", "its two", "same"],
        "doc_id": [1, 2, 3],
        "negatives": [["its two"], ["other one"], ["other one"]],
        "negative_ids": [[2], [1], [1]],
    }
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    sources = [BeirFolder(str(tmp_path / "beir")), PairsFile(path=str(tmp_path / "rows.parquet"))]
    pairs = Mixture(sources if beir_first else sources[::-1]).read()[0]
    table = Catalogue.of(pairs).table()
    assert sorted(table["doc"].to_pylist()) == ["its two", "one", "other one", "same", "two"]
    shown = [name for name in table["given_doc_id"].to_pylist() if name is not None]
    assert sorted(shown) == ["1", "2", "3"]  # of the first source
    catalogue = Catalogue.of(pairs)
    of = {query: i for i, query in enumerate(pairs.texts("query"))}
    for query, text in (("a", "its two"), ("b", "other one")):
        (negative,) = catalogue.negatives[torch.tensor([of[query]])].values.tolist()
        assert catalogue.docs[negative] == text


def test_a_dial_learns_from_the_batches_without_a_temperature_only(tmp_path: Path) -> None:
    options = mixture(tmp_path)
    run = train(options, tmp_path / "run")
    task = TextTask.read(build(configuration.of(options)), tmp_path / "cache", tmp_path / "vectors")
    origin = task.data.texts.split.pairs.table["source"].to_numpy()[task.data.texts.split.train]
    log = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    dials = [0.1, *(record["temperature"] for record in log if record["event"] == "step")]
    moved = [abs(after - before) > 1e-9 for before, after in pairwise(dials)]
    assert (
        moved == [origin[int(rows[0])] == 1 for rows in task.data.sampler(0, 8)]
        and 0 < sum(moved) < 8
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperatures": [0.1]}, "1 temperatures for 3 sources"),
        ({"batches": "mixed"}, "add batches: single"),
        ({"temperatures": [0.1, 0, None]}, "above 0 and is 0"),
    ],
)
def test_temperatures_that_are_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        build(configuration.of(mixture(tmp_path, **options)))


def test_rows_of_sources_without_weights_count_1(tmp_path: Path) -> None:
    options = mixture(tmp_path)
    first = tmp_path / "0.jsonl"
    rows = [{**json.loads(line), "weight": 2.5} for line in first.read_text().splitlines()]
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = TextTask.read(build(configuration.of(options)), tmp_path / "cache", tmp_path / "vectors")
    origin = task.data.texts.split.pairs.table["source"].to_numpy()[task.data.texts.split.train]
    for number, rows in enumerate(task.data.sampler(0, 12)):
        (source,) = set(origin[rows.numpy()].tolist())
        weight = task.data.batch(rows, number).weight
        assert weight is not None and weight.tolist() == [2.5 if source == 0 else 1.0] * len(rows)


def test_bm25_is_ranked_as_deep_as_the_metrics_look(tmp_path: Path) -> None:
    options = mixture(tmp_path)
    more = ["evaluation.bm25=true", "evaluation.metrics=[recall@100,recall@170]"]
    task = TextTask.read(
        build(configuration.of(options, more)), tmp_path / "cache", tmp_path / "vectors"
    )
    found = task.held_out.baselines()["bm25"].metrics
    assert len(task.data.texts.split.corpus) > 170 and found["recall@170"] >= found["recall@100"]
    assert task.held_out.baselines()["bm25"].ranked.shape[1] == 170


def test_documents_in_a_mixture_need_a_rule(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"One {i}. Two {i}."}) + "\n" for i in range(30)))
    options = mixture(tmp_path, temperatures=None)
    for rule in (None, "heading"):
        options["data"]["sources"][2] = {
            "documents": {"path": str(texts), **({"rule": rule} if rule else {})}
        }
        made = build(configuration.of(options))
        if rule is None:
            with pytest.raises(DataError, match="documents in a mixture need a rule"):
                made.data.read()
        else:
            pairs, candidates = made.data.read()
            assert (
                len(pairs) == len(candidates)
                and ("Two 3." in pairs.texts("doc"))
                and not pairs.searched.all()
            )
