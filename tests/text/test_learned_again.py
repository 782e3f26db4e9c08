"""Pairs of texts that were held out are trained on again: after the evaluation, unless the user has
named what is held out."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tempera
from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError, TemperaError
from tempera.finished.calibrate import calibrate
from tempera.finished.held_out_set import evaluate_held_out
from tempera.finished.merge import merge
from tempera.io.ids import content_id
from tempera.mining.hard_negatives import Mining
from tempera.run import refit
from tempera.run.train import train
from tempera.task.config import Config
from tempera.text.judge.held_out import HeldOutQueries
from tempera.text.retrieval import TextTask
from tempera.towers.saved import TRAINED

from ..conftest import WORDS, planted, write_pairs


@pytest.fixture
def options(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """300 pairs, of which 40 queries are the test and 60 are validation."""
    monkeypatch.setattr("tempera.run.publish.render", lambda report: "")
    monkeypatch.setattr(
        "tempera.finished.calibrate.draw_calibration", lambda *_: {"svg": b"", "png": b""}
    )
    options["evaluation"] |= {"validation": 60}
    return options


def with_refit(options: dict[str, Any], refit: str, **data: Any) -> dict[str, Any]:
    changed = copy.deepcopy(options)
    changed["train"]["refit"] = refit
    changed["data"] |= data
    return changed


def weights(folder: Path) -> np.ndarray[Any, Any]:
    return load_file(folder / "model.safetensors")["embedding.weight"]


def learned(run: Run) -> set[int]:
    """Ids of the texts that a run has learned: of a query and of a document for each pair."""
    return set(np.load(run.folder / TRAINED).tolist())


def records(run: Run) -> list[tuple[str, int, int]]:
    return [(each["part"], each["pairs"], each["steps"]) for each in run.results.get("refit", [])]


def test_few_queries_choose_no_length_and_are_learned_all_the_same(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options["evaluation"] |= {"validation": 40}
    phases, fitted = list[dict[str, Any]](), refit.fit
    monkeypatch.setattr(
        refit,
        "fit",
        lambda run, **more: phases.append(dict(run.phases.spent)) or fitted(run, **more),
    )
    run = train(with_refit(options, "auto"), tmp_path / "run")
    assert phases == [{}]  # its seconds are those of the phase `refit`, not of `train`
    steps, before = run.results["steps"], run.results["data"]["train"]
    assert "best" not in run.results and before == 220
    assert (
        records(run) == [("test", 300, round(steps * 300 / 220))] and len(learned(run)) == 2 * 300
    )
    assert run.cautions == run.results["cautions"] and isinstance(run.cautions, list)
    untrained, trained = (
        run.results["metrics"][system]["ndcg@10"] for system in ("untrained", "trained")
    )
    assert repr(run).startswith(
        f"Run('{run.folder}'): ndcg@10 untrained {untrained:.3f}, trained {trained:.3f}"
    )


def test_the_saved_model_learns_everything_and_the_evaluated_one_is_kept(
    options: dict[str, Any], tmp_path: Path
) -> None:
    plain, again = (
        train(with_refit(options, refit), tmp_path / refit) for refit in ("none", "auto")
    )
    best, before = plain.results["best"]["step"], plain.results["data"]["train"]
    assert before == 200 and records(plain) == []
    assert records(again) == [("test", 300, round(best * 300 / 200))]
    for figures in ("metrics", "difference", "spread", "best", "data", "bm25", "hybrid"):
        assert again.results[figures] == plain.results[figures]
    assert np.array_equal(weights(again.folder / "evaluated"), weights(plain.folder / "model"))
    assert not (plain.folder / "evaluated").exists()
    assert not np.array_equal(weights(again.folder / "model"), weights(plain.folder / "model"))
    assert len(learned(plain)) == 2 * 200 and len(learned(again)) == 2 * 300
    hit = again.search("kaban lofin mitor", k=1)[0]
    (vector,) = again.encode(["kaban lofin mitor"])
    assert hit.score == pytest.approx(
        float(vector @ again.encode([hit.preview])[0]), abs=1e-6
    )  # the index is the saved model's


def test_what_is_saved_is_a_run_on_all_pairs(options: dict[str, Any], tmp_path: Path) -> None:
    """As many steps with nothing held out; both towers begin with the vectors of one model."""
    start = train({**options, "train": {"max_steps": 2, "batch_size": 32}}, tmp_path / "start")
    options["tower"] = {"dimensions": 16, "teacher": str(start.folder)}
    options["train"]["learning_rate"] = 0.01
    again = train(with_refit(options, "auto"), tmp_path / "again")
    ((_, pairs, steps),) = records(again)
    options["evaluation"] = {"queries": 0, "validation": 0, "bm25": False}
    by_hand = train(
        {**options, "train": {**options["train"], "max_steps": steps}}, tmp_path / "by_hand"
    )
    assert pairs == by_hand.results["data"]["train"] == 300
    assert np.array_equal(weights(again.folder / "model"), weights(by_hand.folder / "model"))


@pytest.mark.parametrize("margin", [0.05, 0.3])
def test_training_goes_on_with_negatives_that_the_chosen_weights_mine(
    margin: float, options: dict[str, Any], tmp_path: Path
) -> None:
    """A run on all pairs that begins with the evaluated weights, with negatives that these mine,
    for half of the steps."""
    options["train"]["learning_rate"] = 0.1
    without = train(with_refit(options, "auto"), tmp_path / "without")
    options["mining"] = {"again": 2, "relative_margin": margin}
    run = train(with_refit(options, "auto"), tmp_path / "run")
    assert np.array_equal(weights(run.folder / "evaluated"), weights(without.folder / "evaluated"))
    assert records(run)[0][2] == round(
        0.5 * run.results["best"]["step"] * 300 / run.results["data"]["train"]
    )
    mined = tmp_path / "mined.parquet"
    report = tempera.mine(
        run.folder / "evaluated", options["data"]["path"], mined, Mining(2, relative_margin=margin)
    )
    by_hand = train(
        {
            **options,
            "data": {"path": str(mined)},
            "tower": {"dimensions": 16, "teacher": str(run.folder / "evaluated")},
            "train": {**options["train"], "max_steps": records(run)[0][2], "learning_rate": 0.05},
            "evaluation": {"queries": 0, "validation": 0, "bm25": False},
            "mining": {},
        },
        tmp_path / "by_hand",
    )
    assert np.array_equal(weights(run.folder / "model"), weights(by_hand.folder / "model"))
    (record,) = run.results["refit"]
    assert record["goes_on"] and record["negatives"] == report.kept > 0
    card = (run.folder / "model" / "README.md").read_text()
    assert (
        f"on from the weights that validation has chosen, with {record['negatives']:,} mined negatives"
        in card
    )


def test_what_is_mined_is_told_and_a_wrong_index_is_refused_first(
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options["mining"] = {"again": 5000, "absolute_margin": 5.0}
    with caplog.at_level("INFO", logger="tempera"):
        run = train(with_refit(options, "auto"), tmp_path / "run")
    assert "with up to 100 negatives a query that it mines" in caplog.text  # of the depth
    assert "queries have found no negative" in caplog.text
    assert run.results["refit"][0]["negatives"] == 0
    pytest.importorskip("faiss")
    options["mining"] = {"again": 3, "faiss": "Foo"}
    monkeypatch.setattr("tempera.run.train.fit", lambda *_: pytest.fail("it is trained before"))
    with pytest.raises(ConfigError, match="FAISS cannot build the index 'Foo'"):
        train(with_refit(options, "auto"), tmp_path / "other")


@pytest.mark.parametrize(
    "besides",
    [
        {"mining": {"again": 0}},
        {"objective": {"preset": "mnr", "pools": ["docs"]}},
        {
            "train": {"teacher": "a run"},
            "objective": {"teacher": {"weight": 0.5}},
        },
    ],
)
def test_negatives_are_mined_again_only_where_they_are_compared(
    besides: dict[str, Any],
    options: dict[str, Any],
    tiny_run: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options["mining"] = {"again": 2}
    for section, values in besides.items():
        options[section] = {**options.get(section, {}), **values}
    if "teacher" in options["train"]:
        options["train"]["teacher"] = str(tiny_run)
    with caplog.at_level("INFO", logger="tempera"):
        train(with_refit(options, "auto"), tmp_path / "run")
    assert "training again" in caplog.text and "that it mines" not in caplog.text


@pytest.mark.parametrize("rows", [300, 5])
def test_where_data_have_negatives_training_begins_again(
    rows: int, options: dict[str, Any], tmp_path: Path
) -> None:
    pairs = [json.loads(line) for line in Path(options["data"]["path"]).read_text().splitlines()]
    hard = [
        {**row, "negative": pairs[i - 7]["doc"] if i < rows else ""} for i, row in enumerate(pairs)
    ]
    options["data"] = {"path": str(write_pairs(tmp_path / "hard.jsonl", hard))}
    saved = []
    for again in (0, 2):
        options["mining"] = {"again": again}
        saved.append(
            weights(train(with_refit(options, "auto"), tmp_path / f"run-{again}").folder / "model")
        )
    assert np.array_equal(*saved)


@pytest.mark.parametrize(
    ("part", "rates", "slower"),
    [
        ("auto", {"learning_rate": 0.3}, {"learning_rate": 0.15}),
        ("all", {"learning_rate": 0.3}, {"learning_rate": 0.15}),
        ("auto", {"table_optimizer": "rowwise_adagrad"}, {"table_learning_rate": 0.025}),
    ],
)
def test_after_made_rows_training_goes_on_from_the_chosen_weights(
    part: str,
    rates: dict[str, Any],
    slower: dict[str, Any],
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    """A run on all pairs that begins with the chosen weights, for half as many steps at half of the
    rate, without such rows."""
    draw = random.Random(0)
    docs = [" ".join(draw.choice(WORDS) for _ in range(60)) for _ in range(300)]
    path = write_pairs(
        tmp_path / "long.jsonl",
        [{"query": " ".join(doc.split()[::20]), "doc": doc} for doc in docs],
    )
    options["data"]["path"] = str(path)
    options["train"] |= {"made_rows": 2, "evaluations": 8, **rates}
    plain, run = (train(with_refit(options, each), tmp_path / each) for each in ("none", part))
    best, first = plain.results["best"], plain.results["data"]["train"]
    assert best["step"] > 0 and (best["step"] < best["taken"] or "table_optimizer" in rates)
    assert [steps for _, _, steps in records(run)] == [
        round(0.5 * best["step"] * pairs / first) for _, pairs, _ in records(run)
    ]
    last, pairs, steps = records(run)[-1]
    assert (last, pairs) == ("test", 300)
    by_hand = train(
        {
            **options,
            "tower": {"dimensions": 16, "teacher": str(plain.folder)},
            "train": {**options["train"], "max_steps": steps, "made_rows": 0, **slower},
            "evaluation": {"queries": 0, "validation": 0, "bm25": False},
        },
        tmp_path / "by_hand",
    )
    assert np.array_equal(weights(run.folder / "model"), weights(by_hand.folder / "model"))


def test_where_no_row_can_be_made_training_begins_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    plain = train(with_refit(options, "auto"), tmp_path / "plain")
    options["train"]["made_rows"] = 2  # of texts with five words
    assert records(train(with_refit(options, "auto"), tmp_path / "none")) == records(plain)


def test_all_learns_validation_before_the_test_is_evaluated(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options["evaluation"]["bm25"] = True
    chosen, weighed = HeldOutQueries._chosen, list[int]()

    def counted(self: HeldOutQueries, words: Any) -> Any:
        weighed.append(len(self.texts.split.train))
        return chosen(self, words)

    monkeypatch.setattr(HeldOutQueries, "_chosen", counted)
    plain, more, whole = (
        train(with_refit(options, each), tmp_path / each) for each in ("none", "validation", "all")
    )
    assert [records(run) for run in (more, whole)] == [
        [("validation", 260, round(plain.results["best"]["step"] * 260 / 200))],
        [*records(more), ("test", 300, round(plain.results["best"]["step"] * 300 / 200))],
    ]
    assert more.results["metrics"] == whole.results["metrics"]
    assert more.results["spread"] != plain.results["spread"]
    assert (
        weighed == [200] * 3
    )  # validation has chosen the weight beside BM25 before it was learned
    assert more.results["hybrid"] == whole.results["hybrid"] == plain.results["hybrid"]
    assert [len(learned(run)) for run in (more, whole)] == [2 * 260, 2 * 300]
    assert np.array_equal(weights(whole.folder / "evaluated"), weights(more.folder / "model"))
    with pytest.raises(
        DataError,
        match=r"was trained on its validation queries, too \(train.refit\): give --weights",
    ):
        merge(whole.folder, plain.folder)
    assert calibrate(more.folder).about["trained"] == 0  # by the test, which it has not learned
    assert calibrate(more.folder).about["queries"] == 40


def test_what_the_user_has_named_is_not_learned(options: dict[str, Any], tmp_path: Path) -> None:
    rows = planted(500, seed=1)
    named = {part: str(write_pairs(tmp_path / f"{part}.jsonl", rows[start : start + 100]))
             for part, start in (("test", 300), ("validation", 400))}  # fmt: skip
    options["evaluation"] |= {"queries": None}
    test, both, validation = (
        train(
            with_refit(options, "auto", **{part: named[part] for part in parts}),
            tmp_path / "-".join(parts),
        )
        for parts in (["test"], ["test", "validation"], ["validation"])
    )
    assert (
        [part for part, *_ in records(test)] == ["validation"]
        and not records(both)
        and not records(validation)
    )
    assert len(learned(test)) / 2 == records(test)[0][1] == 300
    assert not learned(test) & {content_id(row["query"]) for row in rows[300:400]}
    unasked = copy.deepcopy(options)
    unasked["evaluation"]["queries"] = 0
    blind = train(with_refit(unasked, "auto", test=named["test"]), tmp_path / "unasked")
    assert (
        not learned(blind) & {content_id(row["query"]) for row in rows[300:400]}
        and len(learned(blind)) == 2 * 300
    )
    explicit = train(with_refit(options, "all", **named), tmp_path / "explicit")
    assert [part for part, *_ in records(explicit)] == ["validation", "test"] and len(
        learned(explicit)
    ) == 2 * 500


def test_auto_keeps_to_a_limit(options: dict[str, Any], tmp_path: Path) -> None:
    limited = copy.deepcopy(options)
    limited["train"]["max_pairs"] = 150
    assert not records(train(with_refit(limited, "auto"), tmp_path / "limited"))
    with pytest.raises(
        ConfigError, match=r"train.max_pairs limits the training pairs, and train.refit=all adds"
    ):
        train(with_refit(limited, "all"), tmp_path / "refused")


def test_texts_that_are_no_pairs_are_not_learned_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    teacher = train({**options, "train": {"max_steps": 2, "batch_size": 32}}, tmp_path / "teacher")
    texts = [{"text": row["doc"]} for row in planted(300)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in texts))
    options["data"] = {"source": "documents", "path": str(path)}
    options["train"] |= {"refit": "auto", "teacher": str(teacher.folder), "keep_best": False}
    run = train(options, tmp_path / "run")
    assert run.results["steps"] and not run.results["data"]["validation"] and not records(run)


def test_pairs_that_share_a_text_are_held_out_and_come_back_together(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each document answers two queries, which are in one part, so that no pair is lost."""
    rows = planted(150)
    rows += [
        {"query": other["query"] + " with", "doc": row["doc"]}
        for row, other in zip(rows, planted(150, seed=1))
    ]
    options["data"]["path"] = str(write_pairs(tmp_path / "pairs.jsonl", rows))
    monkeypatch.setattr("tempera.run.publish.render", lambda report: repr(report.facts))
    run = train(with_refit(options, "validation"), tmp_path / "run")
    document = run.results
    assert document["refit"][0]["pairs"] == 260  # all but the test
    assert document["data"]["dropped"] == {}
    says = "100 of the held-out pairs share a text with a pair of another query"
    assert says in (run.folder / "report.html").read_text(encoding="utf-8")
    assert "share a text with a pair of another query" in (
        run.folder / "model" / "README.md"
    ).read_text(encoding="utf-8")


def test_a_calibration_asks_the_model_that_has_not_learned_the_questions(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, again = (
        train(with_refit(options, refit), tmp_path / refit) for refit in ("none", "auto")
    )
    caplog.set_level("INFO", logger="tempera")
    one, two = (calibrate(run.folder) for run in (plain, again))
    assert one.about == two.about
    assert one.probability([0.1, 0.5]) == pytest.approx(two.probability([0.1, 0.5]), rel=1e-3)
    assert one.model != two.model == again.fingerprint  # it is for the saved model
    assert again.search("kaban lofin mitor", k=1)[0].probability is not None
    assert "has since learned what it held out" in caplog.text
    options["evaluation"]["queries"] = 0
    untested = train(with_refit(options, "auto"), tmp_path / "untested")
    assert [part for part, *_ in records(untested)] == ["test"] and calibrate(
        untested.folder
    ).about["queries"] == 60
    explicit = train(with_refit(options, "validation"), tmp_path / "explicit")
    with pytest.raises(DataError, match="has learned all that it has held out"):
        calibrate(explicit.folder)


def test_merging_follows_the_model_that_validation_may_judge(
    options: dict[str, Any], tmp_path: Path
) -> None:
    plain, again = (
        train(with_refit(options, refit), tmp_path / refit) for refit in ("none", "auto")
    )
    start = Path(shutil.copytree(plain.folder / "model", tmp_path / "start"))
    with pytest.raises(DataError, match="cannot be merged: their weights are the same"):
        merge(plain.folder, start)
    stored = load_file(start / "model.safetensors")
    save_file(
        {name: np.roll(each, 1, axis=0) for name, each in stored.items()},
        start / "model.safetensors",
    )
    points = [merge(run.folder, start)["points"] for run in (plain, again)]
    assert points[0] == points[1]
    merge(again.folder, start, weights=1.0, output=tmp_path / "merged")
    assert np.array_equal(weights(tmp_path / "merged"), weights(again.folder / "model"))


def test_only_train_learns_what_is_held_out(options: dict[str, Any], tmp_path: Path) -> None:
    del options["train"]["num_train_epochs"]
    options["train"] |= {"max_steps": 8, "learning_rate": 0.03}
    options["objective"] = {"temperature": 0.05}
    run = tempera.train(options, tmp_path / "run")
    assert [part for part, *_ in records(run)] == ["test"]
    assert not records(tempera.train({**options, "recipe": "none"}, tmp_path / "none"))
    assert run.results["data"]["train"] == 200


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TemperaError("not finite"), ZeroDivisionError()]
)
def test_a_run_that_is_stopped_while_it_trains_again_ends_with_the_same_model(
    error: BaseException, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(with_refit(options, "auto"), tmp_path / "whole")
    extended = TextTask._extended_run

    def stopped(self: TextTask, config: Config, part: Any) -> TextTask:
        extended(self, config, part)
        raise error

    monkeypatch.setattr(TextTask, "_extended_run", stopped)
    with pytest.raises(type(error)):
        train(with_refit(options, "auto"), tmp_path / "stopped")
    assert [*(tmp_path / "stopped.checkpoints").iterdir()]
    monkeypatch.setattr(TextTask, "_extended_run", extended)
    again = train(with_refit(options, "auto"), tmp_path / "stopped")
    for part in ("model", "evaluated"):
        assert np.array_equal(weights(whole.folder / part), weights(again.folder / part))
    assert whole.results["metrics"] == again.results["metrics"]


def test_a_run_says_that_its_teacher_has_learned_its_test(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(with_refit(options, "auto"), tmp_path / "first").folder
    says = (
        f"{first}, which this model begins with or learns from, was trained on 40 of the test queries, so that the figures are "
        "too good"
    )
    for teacher, remedy in (
        (first, f"take {first / 'evaluated'}, which was not, or train it with train.refit=none"),
        (
            first / "model",
            f"take {first / 'evaluated'}, which was not, or train it with train.refit=none",
        ),
        (first / "evaluated", ""),
    ):
        options["tower"] = {"dimensions": 16, "teacher": str(teacher)}
        run = train(with_refit(options, "none"), tmp_path / "run", overwrite=True)
        assert [each for each in run.cautions if "begins with" in each] == (
            [f"{says}: {remedy}"] if remedy else []
        )
    of_index = copy.deepcopy(options)
    of_index["tower"] = {
        "query": {"kind": "head", "model": str(first / "evaluated")},
        "doc": {"index": str(first)},
    }
    cautions = train(of_index, tmp_path / "index").cautions
    assert (
        f"{says}: train it with train.refit=none, and take its index" in cautions
    )  # RUN/evaluated has none
    assert set(np.load(first / "trained.npy")) <= set(np.load(tmp_path / "index" / "trained.npy"))
    assert (
        "was trained on 40 of these 40 queries"
        in evaluate_held_out(tmp_path / "index").cautions()[0]
    )
    shutil.rmtree(first / "evaluated")
    (first / "tempera-manifest.json").unlink()  # as of a version that left none
    options["tower"] = {"dimensions": 16, "teacher": str(first)}
    cautions = train(with_refit(options, "none"), tmp_path / "run", overwrite=True).cautions
    assert f"{says}: give queries that it has not seen" in cautions
    monkeypatch.chdir(first)  # a word of the options is no path
    options["tower"] = {"dimensions": 16, "vocabulary": 300}
    assert not [
        each for each in train(options, tmp_path / "other").cautions if "begins with" in each
    ]


def test_only_options_that_name_models_are_looked_for() -> None:
    """A prompt is no path, however long it is."""
    tower = {
        "kind": "pretrained",
        "model": "m",
        "query_prompt": "p " * 400,
        "query": {"head": {"model": "h"}},
        "doc": {"index": "i"},
    }
    config = SimpleNamespace(
        resolved={
            "tower": tower,
            "train": {"guide": "g", "report_to": ["x"]},
            "data": {"path": "d"},
        }
    )
    assert Config.begins_with.fget(config) == ["m", "h", "i", "g"]  # type: ignore[attr-defined]
