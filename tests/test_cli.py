"""The command line: what it prints where, how it ends, and that it never shows a traceback.

`tempera` answers in the process of the test, `cold` is `python -m tempera` itself; see conftest.py.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml


def refused(answer: Any, *says: str) -> str:
    """The one line of a refusal, which must have every property of one; `says` must stand in it."""
    assert answer.code == 2, answer
    assert "Traceback" not in answer.err
    *progress, line = answer.err.splitlines()
    assert line.startswith("tempera: ")
    assert all(known(other) for other in progress), progress
    assert len(line) < 1000
    for text in says:
        assert text in line, line
    if answer.out:
        assert answer.document == {"error": line.removeprefix("tempera: ")}
    return line


def known(line: str) -> bool:
    """Whether it is something that a run says about itself."""
    parts = (
        ": pairs",
        "query  read as query",
        "doc    read as doc",
        "test queries against",
        "pairs a batch on",
        "saved: the weights of",
        "training again, also on all that was held out",
        "training goes on, also on all that was held out",
    )
    return any(part in line for part in parts)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


QUICK = ["train.max_steps=1", "train.evaluations=0", "evaluation.bm25=false"]


# ---- answers


def test_train_prints_one_json_document(
    tempera: Any, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = tempera(
        "train", *tiny, *QUICK[1:], "evaluation.bm25=true", "--output", "run", "--json"
    )
    assert answer.code == 0
    document = answer.document
    assert answer.out.count("\n") == 1
    assert document["output"] == str(tmp_path / "run")
    for system in ("untrained", "bm25", "trained"):
        assert 0 <= document["metrics"][system]["ndcg@10"] <= 1
    assert {"read", "tokenise", "train", "evaluate", "refit", "publish"} == set(document["seconds"])
    assert document["peak_memory_bytes"] > 2**20
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()).items() <= document.items()
    read, query, doc, first, *others = answer.err.splitlines()
    assert read.endswith("pairs.jsonl: pairs")
    assert [query, doc] == [
        "  query  read as query  by its name",
        "  doc    read as doc    by its name",
    ]
    assert (
        first
        == "300 pairs: 260 for training, 0 validation and 40 test queries against 300 documents"
    )
    batch = "28 pairs a batch on 1 process (of at most 32; batches differ by one pair at most)"
    assert (
        others[0] == f"54 steps, 6 epochs; {batch}; each query is compared with 27 other documents"
    )
    assert others[1].startswith("saved: the weights of the last step, 54, since ")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_train_shows_a_table(tempera: Any, tiny: list[str], tmp_path: Path) -> None:
    output = tmp_path / ("[long]" * 20) / "run"  # neither wrapped nor read as markup
    answer = tempera("train", *tiny, *QUICK, "--output", output)
    assert answer.code == 0
    for text in ("metric", "untrained", "trained", "ndcg@10", "recall@100", "peak memory"):
        assert text in answer.out
    assert (
        f"\nreport: {output}/report.html\nsearch: tempera search {shlex.quote(str(output))} "
        in answer.out
    )
    assert "bm25" not in answer.out


def test_search_prints_one_json_document(tempera: Any, tiny_run: Path) -> None:
    answer = tempera("search", tiny_run, "kaban ünïcode", "-k", "3", "--json")
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    assert answer.document["query"] == "kaban ünïcode"
    assert [hit["rank"] for hit in answer.document["hits"]] == [1, 2, 3]
    for hit in answer.document["hits"]:
        assert set(hit) == {"rank", "score", "id", "name", "place", "text", "columns"}


def test_search_reads_a_query_a_line_from_a_pipe(
    cold: Any, tempera: Any, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cold(
        "search", tiny_run, "-k", "2", input="kaban\n\nmicel \udcff\n", errors="surrogateescape"
    )
    assert (answer.code, answer.err) == (0, "") and len(answer.out.splitlines()) == 6
    first, *hits = answer.out.splitlines()[:3]
    assert (
        first == "search: kaban"
        and hits == tempera("search", tiny_run, "kaban", "-k", "2").out.splitlines()
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("kaban\nmicel"))
    as_json = tempera("search", tiny_run, "-k", "1", "--json", "--hybrid")
    assert [json.loads(line)["query"] for line in as_json.out.splitlines()] == ["kaban", "micel"]


def test_search_marks_the_words_of_the_query() -> None:
    from tempera.cli.searching import marked

    line = marked("How dates are parsed: parseDate(x)", "parsing the date, how?")
    assert [line.plain[span.start : span.end] for span in line.spans] == [
        "dates",
        "parsed",
        "parseDate",
    ]


def test_search_shows_rank_score_and_place(tempera: Any, tiny_run: Path, pairs_file: Path) -> None:
    doc = json.loads(pairs_file.read_text().splitlines()[41])["doc"]
    answer = tempera("search", tiny_run, doc)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert len(lines) == 10
    assert lines[0].split() == [
        "1",
        "1.000",
        *doc.split(),
        str(pairs_file),
        "row",
        "42",
    ]  # a document without a name shows its text
    assert len(tempera("search", tiny_run, doc, "-k", "2").out.splitlines()) == 2
    assert len(tempera("search", tiny_run, doc, "-k", "9999").out.splitlines()) == 300


def test_an_export_is_told_in_words_and_replaced_only_when_asked(
    tempera: Any, tiny_run: Path, tmp_path: Path
) -> None:
    command = ["export", tiny_run, "--to", "parquet", "--output", tmp_path / "out"]
    assert tempera(*command).out.splitlines() == [
        f"written: {tmp_path / 'out'}",
        "documents: 300",
        "dimensions: 16",
    ]
    refused(tempera(*command), "--overwrite")
    assert tempera(*command, "--overwrite").code == 0


def test_the_report_shows_the_text_of_documents_without_a_name(
    tiny_run: Path, pairs_file: Path
) -> None:
    page = (tiny_run / "report.html").read_text()
    docs = [json.loads(line)["doc"] for line in pairs_file.read_text().splitlines()]
    assert sum(f"<code>{doc}</code>" in page for doc in docs) >= 10


def test_a_query_of_bytes_that_are_no_text_is_searched_for_all_the_same(
    cold: Any, tiny_run: Path
) -> None:
    answer = cold("search", tiny_run, b"kaban \xff", "--json", env={"PYTHONIOENCODING": "ascii"})
    assert (answer.code, answer.err) == (0, "")
    assert len(answer.document["hits"]) == 10


@pytest.mark.parametrize("preset", ["mnr", "symmetric"])
def test_the_printed_configuration_prints_itself(tempera: Any, preset: str, tmp_path: Path) -> None:
    given = [
        "train",
        "--print-config",
        f"objective.preset={preset}",
        "objective.scale=16",
        "train.seed=4",
    ]
    answer = tempera(*given)
    assert (answer.code, answer.err) == (0, "")
    file = tmp_path / "config.yaml"
    file.write_text(answer.out)
    assert tempera("train", "--print-config", file) == answer
    as_json = tempera(*given, "--json")
    assert as_json.out.count("\n") == 1
    assert as_json.document == yaml.safe_load(answer.out)
    assert as_json.document["train"]["seed"] == 4
    assert (
        tempera("train", file, "train.seed=9", "--print-config", "--json").document["train"]["seed"]
        == 9
    )
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["-h"], ["train", "--help"], ["search", "-h"]]
)
def test_help(tempera: Any, arguments: list[str]) -> None:
    answer = tempera(*arguments)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Usage: ")


def test_help_is_not_cut_and_names_every_option(tempera: Any) -> None:
    answer = tempera("--help")
    assert "..." not in answer.out.partition("Commands:")[2]
    page = tempera("train", "--help").out
    options = tempera("train", "--print-config", "--json").document
    for section in ("data", "tower", "train", "evaluation", "mining", "card"):
        for option in set(options[section]) - {"source", "kind"}:
            assert f"  {section}.{option}=" in page
    assert (
        "train.batch_size=auto " in page
        and "data.source=pairs" in page
        and "pairs.csv" in page
        and "--print-config" in page
    )
    assert re.search(r"tower.dimensions=512 +[A-Za-z]", page)


def test_a_reader_that_has_gone_is_no_reason_to_complain() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tempera --help | true", shell=True, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_has_gone_before_the_hits_is_none_either(tiny_run: Path) -> None:
    command = [sys.executable, "-m", "tempera", "search", str(tiny_run), "kaban"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["a[v2]", "b[/x]"])
def test_brackets_in_the_name_of_a_model_are_no_markup(
    tempera: Any,
    tiny_run: Path,
    pairs_file: Path,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run / "model", name)
    answer = tempera("evaluate", name, pairs_file)
    assert answer.code == 0 and f" {name} " in answer.out


def test_options_that_nothing_reads_are_refused(
    tempera: Any, tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    mine = ["mine", run, pairs_file, "--output", tmp_path / "mined.parquet"]
    for command in (["calibrate", run], ["calibrate", run, pairs_file], mine):
        refused(tempera(*command, "--split", "dev"), "--split is of a BEIR folder: give one")
    refused(
        tempera(*mine, "--cross-margin", "0.1"),
        "--cross-margin is of a cross-encoder: give one as --cross-encoder",
    )
    assert list(tmp_path.iterdir()) == [run] and tree(run) == tree(tiny_run)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_options_of_every_command_stand_before_or_behind_it(
    tempera: Any, tiny_run: Path, place: int
) -> None:
    words = ["search", str(tiny_run), "kaban"]
    assert tempera(*words[:place], "--quiet", *words[place:]).out == tempera(*words).out
    assert tempera(*words[:place], "--version", *words[place:]).out.startswith("tempera ")


def test_behind_a_double_dash_nothing_is_an_option(tempera: Any, tiny_run: Path) -> None:
    assert tempera("search", tiny_run, "--json", "--", "--version").document["query"] == "--version"


def test_a_quiet_run_shows_its_answer_only(tempera: Any, tiny: list[str], tmp_path: Path) -> None:
    answer = tempera("train", *tiny, *QUICK, "--output", tmp_path / "run", "--quiet")
    assert answer.code == 0 and answer.err == "" and "ndcg@10" in answer.out
    rest = [line for line in answer.out.splitlines() if line[:1] not in tuple("┏┃┡│└")]
    assert all(line.startswith("caution: ") for line in rest[1:]), rest


def test_a_verbose_refusal_shows_where(tempera: Any) -> None:
    answer = tempera("search", "none", "words", "--verbose")
    assert "Traceback" in answer.err and answer.err.endswith("tempera: no such run: none\n")


def test_an_error_of_ours_is_one_line_too(tempera: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera import cli

    def broken(*_: object, **__: object) -> None:
        raise IndexError("index 7 is out of bounds")

    monkeypatch.setattr(cli, "app", broken)
    answer = tempera()
    assert (answer.code, answer.out) == (1, "")
    assert (
        answer.err
        == "tempera: unexpected IndexError: index 7 is out of bounds (--verbose shows where)\n"
    )


def test_an_error_without_words_is_no_lack_of_memory(
    tempera: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera import cli

    for error, says in (
        (AssertionError(), "unexpected AssertionError: no message"),
        (MemoryError(), "out of memory"),
    ):
        monkeypatch.setattr(cli, "app", Mock(side_effect=error))
        assert tempera().err.startswith(f"tempera: {says}")


# ---- refusals


def test_a_full_disk_behind_standard_output_is_one_line(tiny_run: Path) -> None:
    command = [sys.executable, "-m", "tempera", "search", str(tiny_run), "ka lo"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "tempera: cannot write to standard output: No space left on device\n"


def test_a_wide_table_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    from tempera.cli.output import _show

    table = Table(*(f"recall@{i}0000000" for i in range(12)))
    table.add_row(*(f"0.{i:02}3±0.01{i:02}" for i in range(12)))
    _show(table)
    out = capsys.readouterr().out
    assert "…" not in out and all(f"0.{i:02}3±0.01{i:02}" in out for i in range(12))
    assert len(out.splitlines()) == 5


@pytest.mark.parametrize(
    ("paths", "heads"),
    [
        (("runs/a", "x" * 30 + "/lib/site/model"), ("runs/a", ".../site/model", "runs/a + BM25")),
        (
            ("y" * 40 + "/one/model", "x" * 40 + "/one/model"),
            ("y" * 40 + "/one/model", "x" * 40 + "/one/model"),
        ),
        (
            ("z" * 40 + "/run", "z" * 40 + "/run/evaluated"),
            ("z" * 40 + "/run", ".../run/evaluated"),
        ),
        (
            ("z" * 40 + "/a/run", "z" * 40 + "/a/run/model"),
            (".../a/run", ".../run/model", ".../a/run + BM25"),
        ),
    ],
    ids=["a long one", "alike", "one in the other", "both"],
)
def test_long_paths_are_shown_by_their_ends(
    paths: tuple[str, ...], heads: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    from tempera.cli.output import print_findings

    score = {"ndcg@10": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    names = [*paths, f"{paths[0]} + BM25"]
    verdict = f"{names[0]} is better than {names[1]} in ndcg@10"
    document = {
        "task": "t",
        "counts": {},
        "systems": dict.fromkeys(names, score),
        "cautions": [],
        "verdicts": [verdict],
    }
    print_findings([document])
    out = capsys.readouterr().out
    assert all(f" {head} " in out for head in heads)
    assert f"{heads[0]} is better than {heads[1]} in ndcg@10" in out


@pytest.mark.parametrize(
    ("both", "bm25", "weight", "says"),
    [
        (0.5, 0.1, 0.3, "add --hybrid (weights"),
        (0.3, 0.1, 0.3, "--hybrid, here below the vectors alone (weights"),
        (0.5, 0.6, 0.3, "--hybrid, here below BM25 alone (weights"),
        (
            0.4,
            0.1,
            1.0,
            "words add nothing on validation, so --hybrid ranks by the vectors alone (weights 1 and 0, ",
        ),
    ],
)
def test_words_and_vectors_together_are_advised_where_they_are_no_worse(
    both: float, bm25: float, weight: float, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tempera.cli.output import print_run

    systems = {"bm25": bm25, "trained": 0.4, "trained + BM25": both}
    metrics = {name: {"ndcg@10": value} for name, value in systems.items()}
    print_run(
        {
            "metrics": metrics, "data": {"queries": 1, "corpus": 9}, "hybrid": {"weight": weight, "queries": 0},
            "bytes": {"words.parquet": 10**6}, "seconds": {"train": {"wall": 1.0, "cpu": 1.0}}, "replaying": 0.0,
            "peak_memory_bytes": 1, "output": "runs/a", "cautions": [],
        }
    )  # fmt: skip
    out = capsys.readouterr().out
    assert says in out and "1 held-out query, 9 documents" in out


def test_the_commands_that_are_shown_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    from tempera.cli.output import _print_end

    seconds = {"train": {"wall": 1.0, "cpu": 1.0}}
    document = {
        "seconds": seconds,
        "replaying": 0.0,
        "peak_memory_bytes": 1,
        "output": "runs/with space",
    }
    document["cautions"] = ["it may rain"]
    _print_end(document, "search: tempera search {output}")
    out = capsys.readouterr().out
    assert "tempera search 'runs/with space'" in out and out.startswith(
        "caution: it may rain\nCPU seconds: train 1.0; "
    )


def test_an_unknown_key_of_the_command_line(
    tempera: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = tempera("train", "objective.temprature=1", "--json")
    refused(
        answer,
        "objective.temprature: no such option",
        " Did you mean temperature?",
        "(command line)",
    )
    assert answer.document["error"].startswith("objective.temprature: ")
    assert answer.err.count("\n") == answer.out.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_key_of_a_file(tempera: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  seed: 1\n\nobjective:\n  temprature: 1\n")
    refused(tempera("train", file), " Did you mean temperature?", f"({file}:5)")
    refused(tempera("train", file, "--print-config"), f"({file}:5)")


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "none.yaml"], "no such file: none.yaml"),
        (["train", "a.yaml", "b.yaml"], "give data or one configuration file, not 2 files: a.yaml, b.yaml"),
        (["train", "=1"], "expected an override dotted.key=value"),
        (["train", "train.seed=["], "is not YAML"),
        (["train", "data.metadata=[*]"], "* begins an alias, so write"),
        (["train", "objective.temperature=0"], "objective.temperature: the temperature must be above 0 and is 0"),
        (["train", "objective.temperature=-1"], "objective.temperature: the temperature must be above 0 and is -1"),
        (["train", "objective.scale=0"], "so nothing can be learned"),
        (["train", "objective.scale=20", "objective.temperature=1"], "give only one of them"),
        (["train", "objective.preset=[mnr]"], "objective.preset: no ['mnr']"),
        (["train", "objective.hardest=0"], "hardest keeps at least 1 negative"),
        (["train", "data.source=pairs"], "data.path: is required"),
        (["train", "data.source=pairs", "data.path=none.jsonl"], "no such file: none.jsonl"),
        (["train", "data.roots=[/no/such/folder]"], "no such folder: /no/such/folder"),
        (["train", "train.lr=1"], "no such option. Did you mean learning_rate?"),
        (["train", "data.source=pairs", "data.path=a.csv", "data.roots=[x]"], "belongs to data.source=installed_python"),
        (["train", "--output"], "--output"),
        (["eval", "runs/first", "pairs.csv"], "eval is now called evaluate"),
        (["tune", "job.yaml", "--space", "space.yaml", "--workers", "2"], "--workers is now called --jobs"),
        (["mine", "run", "x.csv", "-o", "x", "--share=0.9"], "--share is now called --relative-margin, which is 1 - share"),
        (["mine", "run", "x.csv", "-o", "x", "--relative-margin", "nan"], "relative-margin is nan"),
        (["mine", "src", "x.csv", "-o", "x", "--relative-margin", "4"], "at most 1"),
        (["recommend", "none", "--history", ","], "names no item; give ids"),
        (["train", "--nonsense"], "No such option: --nonsense"),
        (["train", "--temperature", "0.1"], "--temperature; options of a configuration are written objective.temperature=0.1"),
        (["tune", "--batch-size=64"], "are written train.batch_size=64"),
        (["sweep", "--objective.temperature", "--yes"], "are written objective.temperature=VALUE"),
        (["train", "--lr", "3"], "are written train.learning_rate=3"),
        (["train", "--seed", "3"], "are written train.seed=3 or evaluation.seed=3"),
        (["recommend", "none", "--user", "3", "--hybrid", "--vectors"], "--hybrid and --vectors contradict each other"),
        (["search"], "RUN"),
        (["search", "none", "words"], "no such run: none"),
        (["search", "none"], "no such run: none"),
        (["search", "docs", "words"], "docs is not an index: it is no run that has ended, since docs/index is missing"),
        (["search", "none", "words", "-k", "0"], "-k"),
        (["search", "none", "words", "-k", "-3"], "-k"),
        (["search", "none", "words", "-k", "many"], "-k"),
        (["search", "none", "words", "more"], "more"),
        (["serach", "none", "words"], "No such command 'serach'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(
    tempera: Any, arguments: list[str], says: str, json_too: bool
) -> None:
    answer = tempera(arguments[0], *(["--json"] if json_too else []), *arguments[1:])
    refused(answer, says)
    assert bool(answer.out) == json_too


def test_an_option_that_is_cut_short_is_none_of_a_configuration(tempera: Any) -> None:
    said = tempera("train", "pairs.csv", "--out", "x").err
    assert "--output" in said and "options of a configuration" not in said


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(
    tempera: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("year=2024.csv", "data.query=x.csv"):
        Path(name).write_text("asked,answer\na,b\n")
        shown = tempera("train", name, "data.query=asked", "--print-config", "--json").document[
            "data"
        ]
        assert (shown["path"], shown["query"]) == (name, "asked")
        refused(tempera("evaluate", "none", name), "no such folder: none")
    refused(tempera("train", "year=2023.csv"), "year: no such option")
    Path("model").mkdir()
    refused(
        tempera("evaluate", "model", "data.query=asked"),
        "give a table of pairs or a BEIR folder with data.query=asked",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--nonsense"], "No such option: --nonsense"),
        (["search", "runs/first", "--temperature", "0.1"], "No such option: --temperature"),
        (["sweep", "--metric"], "Option '--metric' requires an argument."),
    ],
)
def test_no_option_of_a_configuration_is_meant(
    tempera: Any, arguments: list[str], says: str
) -> None:
    assert refused(tempera(*arguments)).endswith(says)


def test_a_search_in_what_is_no_run_and_for_nothing(
    tempera: Any, tiny_run: Path, tmp_path: Path
) -> None:
    refused(tempera("search", tmp_path, "words"), "is missing")
    refused(tempera("search", tiny_run / "metrics.json", "words"), "no such run")
    refused(tempera("search", tiny_run, ""), "the query is empty")
    refused(tempera("search", tiny_run, " \n ", "--json"), "the query is empty")
    unknown = "the model knows no word of this query, so that the order of these hits says nothing"
    for query in ("\u2192", "日本"):
        assert tempera("search", tiny_run, query).out.splitlines()[-1] == unknown
        assert tempera("search", tiny_run, query, "--json").document["notes"] == [unknown]
    assert tempera("search", tiny_run, "kaban", "--json").document["notes"] == []
    assert unknown not in tempera("search", tiny_run, "kaban").out


def test_depths_and_splits_that_mean_nothing(tempera: Any, tiny_run: Path, tmp_path: Path) -> None:
    table = tmp_path / "pairs.jsonl"
    table.write_text('{"query": "kaban", "document": "lodor"}\n' * 2)
    for depth in ("0", "1,0", "-1", "ten"):
        refused(tempera("evaluate", tiny_run, table, "-k", depth), "give depths such as 1,10")
    refused(
        tempera("evaluate", tiny_run, table, "--split", "dev"),
        "the split 'dev' is of a BEIR folder, and none is given",
    )
    nope, out = tmp_path / "nope", tmp_path / "out"
    for command in (
        ("distill", nope, table, "--output", out),
        ("evaluate", nope, table),
        ("evaluate", tiny_run, table, "--against", nope),
        ("mine", nope, table, "--output", out),
        ("calibrate", nope),
        ("merge", tiny_run, nope),
    ):
        refused(tempera(*command), "no such folder: ")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("search", "run", "words"), "--threshold"),
        (("calibrate", "run"), "--precision"),
        (("mine", "run", "pairs.csv", "-o", "out.csv"), "--relative-margin"),
        (("tune", "pairs.csv"), "--lost-after"),
    ],
)
def test_no_number_is_nan_or_infinite(
    tempera: Any, words: tuple[str, ...], option: str, number: str
) -> None:
    answer = tempera(*words, f"{option}={number}")
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert option in answer.err and number.strip("-") in answer.err


def test_a_merge_takes_one_weight_or_two(tempera: Any, tiny_run: Path, tmp_path: Path) -> None:
    for text, says in (
        ("0.7,0.4", "--weights is 0.7,0.4, whose sum is 1.1 and not 1: give that of the run"),
        ("0.2,0.3,0.5", "--weights has 3 weights for two models: give"),
        ("nan", "--weights is nan: give"),
        ("1.5", "--weights is 1.5: give"),
        ("half", "--weights is half: give"),
    ):
        refused(tempera("merge", tiny_run, tiny_run, "--weights", text, "-o", tmp_path / "m"), says)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.jsonl", "", "empty.jsonl is empty"),
        ("rows.csv", "query,doc\n", "rows.csv holds no rows"),
        ("one.jsonl", '{"query": "a b", "doc": "a c"}\n', "give more data"),
        ("other.jsonl", '{"x": "a", "y": "b"}\n', "has no column that is usual for a query"),
        ("broken.jsonl", '{"query": \n', "broken.jsonl, row 1: not JSON"),
        ("pairs.txt", "a b\n", "cannot read .txt"),
    ],
)
def test_data_that_cannot_be_trained_on(
    tempera: Any, tmp_path: Path, name: str, content: str, says: str
) -> None:
    (tmp_path / name).write_text(content)
    output = tmp_path / "run"
    refused(
        tempera("train", "data.source=pairs", f"data.path={tmp_path / name}", "--output", output),
        says,
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_of_python(tempera: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    command = ["train", f"data.roots=[{source}]", "--output", tmp_path / "run"]
    refused(tempera(*command), "no Python files under")
    (source / "a.py").write_text("def f():\n    return 1\n")
    refused(tempera(*command), "no function or class with a docstring")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_batch_larger_than_the_data(tempera: Any, tiny: list[str], tmp_path: Path) -> None:
    answer = tempera("train", *tiny, "train.batch_size=261", "--output", tmp_path / "run", "--json")
    refused(answer, "train.batch_size is 261 and the data has 260 pairs to train on")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_lost(tempera: Any, tiny: list[str], tmp_path: Path) -> None:
    lost = ["train.learning_rate=1e39", "tower.token_weights=false"]
    answer = tempera("train", *tiny, *lost, "--output", tmp_path / "run")
    refused(
        answer,
        "of towers.embedding.weight are not finite, from an earlier step: lower train.learning_rate",
    )
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_holds_a_run_is_replaced_only_when_asked(
    tempera: Any, tiny: list[str], tmp_path: Path
) -> None:
    command = ["train", *tiny, *QUICK, "--output", tmp_path / "run"]
    assert tempera(*command).code == 0
    before = tree(tmp_path)
    refused(tempera(*command), f"--output {tmp_path}/run holds an earlier result", "--overwrite")
    refused(tempera(*command, "data.path=none.jsonl", "--overwrite"), "no such file")
    assert tree(tmp_path) == before
    assert tempera(*command, "train.seed=3", "--overwrite").code == 0
    after = tree(tmp_path)
    assert set(after) == set(before)
    assert after["run/model/model.safetensors"] != before["run/model/model.safetensors"]


def test_an_output_that_is_no_place_for_a_run(
    tempera: Any, tiny: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    before = tree(tmp_path)
    for output, says in {
        "file": "is a file; give a folder",
        "file/run": "cannot write",
        "other": "holds files that are not a run of Tempera",
        "x" * 300: "ile name too long",
        "/": "--output / is a mount point",
    }.items():
        for overwrite in ([], ["--overwrite"]):
            refused(
                tempera("train", *tiny, *QUICK, "--output", tmp_path / output, *overwrite), says
            )
    assert tree(tmp_path) == before


# ---- being stopped


def default_signals() -> None:
    """A shell that starts the tests in the background has its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_a_stopped_training_leaves_a_checkpoint_and_nothing_else(
    tiny: list[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """In a process that is forked, and so has torch loaded."""
    folder, streams = tmp_path / "here", [tmp_path / "out", tmp_path / "err"]
    folder.mkdir()
    command = [
        "train",
        *tiny,
        "train.max_steps=10000000",
        "--output",
        str(folder / "run"),
        "--json",
    ]
    process = multiprocessing.get_context("fork").Process(target=main_in, args=(command, streams))
    process.start()
    try:
        stop(process, folder, number)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == code
    out, err = (path.read_text() for path in streams)
    assert out == ""
    assert [line for line in err.splitlines() if not known(line)] == [
        f"{number.name}: stopping after this step; repeat the signal to stop now",
        f"saved checkpoint {only(folder / 'run.checkpoints')}; run the same command again to resume",
        f"tempera: stopped by {number.name}; the same command resumes: {shlex.join(['tempera', *command])}",
    ]
    assert [path.name for path in folder.iterdir()] == ["run.checkpoints"]


def main_in(command: list[str], streams: list[Path]) -> None:
    """Answer a command, with standard output and standard error in files."""
    from tempera import cli

    default_signals()
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    sys.argv = ["tempera", *command]
    cli.main()


def stop(process: Any, folder: Path, number: signal.Signals) -> None:
    """Stop an endless training in its midst."""
    log = folder / "run.partial" / "log.jsonl"

    def steps() -> int:
        assert process.is_alive()
        return log.read_text().count('"step", "step"') if log.exists() else 0

    wait_for(lambda: steps() > 3)
    os.kill(process.pid, signal.SIGHUP)  # ignored when it started, and still
    seen = steps()
    wait_for(lambda: steps() > seen + 3)
    os.kill(process.pid, number)
    process.join(30)


def test_a_signal_while_a_class_is_made_ends_the_command() -> None:
    """Python 3.11 makes a RuntimeError of it there."""
    code = """
import signal
from tempera import cli

class Part:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGTERM)

cli.app = lambda *given, **named: type("Whole", (), {"part": Part()})
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "tempera: stopped by SIGTERM\n")


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


# ---- a full disk


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Iterator[Path]:
    """A disk of 4 MiB that holds a run."""
    disk = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"a small disk cannot be mounted here: {getattr(error, 'stderr', None) or error}"
        )
    try:
        shutil.copytree(tiny_run, disk / "run")
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("free", [0, 12, 20, 28, 48, 96])  # KiB, a run takes about 150
def test_a_full_disk_keeps_the_run_that_was_there(
    tempera: Any, tiny: list[str], small_disk: Path, free: int
) -> None:
    ballast = small_disk / "ballast"
    ballast.unlink(missing_ok=True)
    before = tree(small_disk)
    room = shutil.disk_usage(small_disk).free - free * 1024
    ballast.write_bytes(bytes(max(0, room)))
    answer = tempera("train", *tiny, *QUICK, "--output", small_disk / "run", "--overwrite")
    refused(answer, f"cannot write {small_disk}/run: ", "untouched")
    ballast.unlink()
    assert tree(small_disk) == before
    assert [path.name for path in small_disk.iterdir()] == ["run"]


def test_with_room_again_the_run_is_replaced(
    tempera: Any, tiny: list[str], small_disk: Path
) -> None:
    assert tempera("train", *tiny, *QUICK, "--output", small_disk / "run", "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search", "run", "q", "-k", "0"], "Invalid value for '-k': 0 was given. "),
        (["search", "run", "q", "-k", "5", "-k", "0"], "Invalid value for '-k': 0 was given. "),
        (["sweep", "x.yaml", "--seeds=0"], "Invalid value for '--seeds': 0 was given. "),
        (
            ["mine", "run", "x.csv", "--output", "o.parquet", "--depth", "abc"],
            "Invalid value for '--depth': abc was given. ",
        ),
        (
            ["search", "run", "q", "--threshold", "1.5"],
            "Invalid value for '--threshold': 1.5 was given. ",
        ),
    ],
)
def test_a_value_that_an_option_does_not_take_is_named(
    tempera: Any, arguments: list[str], says: str
) -> None:
    answer = tempera(*arguments)
    assert (
        answer.code == 2
        and answer.err.startswith(f"tempera: {says}")
        and answer.err.count("\n") == 1
    )
