"""Merged models: weights between two, the curve over them, and what training made worse on other
data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tempera import export_held_out
from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError, OutputError
from tempera.finished.merge import choose_weight, merge
from tempera.io.atomic import write_manifest_again
from tempera.mining.embedder import Model
from tempera.options import yaml_options as config
from tempera.run.train import train
from tempera.towers.merged import Merged
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

pytest.importorskip("sentence_transformers")


def points(*rows: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        {"weight": w, "scores": dict(zip(("validation", "a", "b"), scores))} for w, *scores in rows
    ]


@pytest.fixture(scope="module")
def judged(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is judged on its own pairs as other data, with a model of its tokenizer beside
    it."""
    folder = tmp_path_factory.mktemp("merged")
    options = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal"},
        "train": {"batch_size": 32, "num_train_epochs": 4, "evaluations": 0, "learning_rate": 0.03},
        "evaluation": {"queries": 30, "validation": 60, "bm25": False, "also": [str(pairs_file)]},
    }
    run = train(options, folder / "run")
    tower = StaticTower(train_tokenizer(["a"], 300, 16), 16)
    from tokenizers import Tokenizer

    tower.tokenizer = Tokenizer.from_file(str(run.folder / "model" / "tokenizer.json"))
    torch.manual_seed(0)
    tower.embedding.weight.data = torch.randn(tower.tokenizer.get_vocab_size(), 16) / 4
    tower.save(folder / "base")
    return folder


def weights(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["embedding.weight"]


def test_other_data_are_judged_before_and_after(judged: Path, pairs_file: Path) -> None:
    run = Run(judged / "run")
    (also,) = run.results["also"].items()
    path, found = also
    assert path == str(pairs_file) and found["metric"] == "ndcg@10"
    assert (
        found["difference"]["mean"] == pytest.approx(found["after"] - found["before"])
        and found["after"] > 0.9
    )
    after = (
        run.evaluate(pairs_file, metrics=["ndcg@10"])[0].systems[str(run.folder)].metrics["ndcg@10"]
    )
    assert found["after"] == pytest.approx(after, abs=1e-6)
    assert "Other data, before and after" in (judged / "run" / "report.html").read_text()
    assert "Smaller vectors" in (judged / "run" / "report.html").read_text()


def test_other_data_with_labels_are_refused_without_advice_that_nobody_can_follow(
    judged: Path, tmp_path: Path
) -> None:
    path = tmp_path / "labelled.csv"
    path.write_text("sentence1,sentence2,label\na,b,1\nc,d,0\n")
    says = "labelled.csv holds scores or labels, and other data have no options: give the rows that belong together"
    with pytest.raises(DataError, match=says):
        merge(judged / "run", judged / "base", also=[str(path)])
    with pytest.raises(DataError, match=r"give data\.min_score"):  # which this can
        Run(judged / "run").evaluate(path)


def test_weights_are_interpolated(judged: Path) -> None:
    assert (
        merge(judged / "run", judged / "base", weights=0.3, output=judged / "third")["weight"]
        == 0.3
    )
    expected = 0.3 * weights(judged / "run" / "model") + 0.7 * weights(judged / "base")
    torch.testing.assert_close(weights(judged / "third"), expected)
    assert np.isfinite(Model(str(judged / "third")).query(["kaban"])).all()
    with pytest.raises(OutputError, match="holds an earlier result"):
        merge(judged / "run", judged / "base", weights=0.3, output=judged / "third")
    with pytest.raises(DataError, match="is a saved model without documents to search"):
        Run(judged / "third").search("kaban")


def test_the_ends_are_the_models_to_the_bit(judged: Path) -> None:
    merged, texts = Merged(judged / "run", judged / "base"), ["kaban locel", "mifin"]
    for weight, folder in ((1, "run"), (0, "base")):
        merged.at(weight)
        np.testing.assert_allclose(
            merged.doc(texts), Model(str(judged / folder)).doc(texts), atol=1e-6
        )


def test_a_curve_is_drawn_and_its_best_is_saved(
    judged: Path, tempera: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempera.finished.merge.STEPS", 3)
    answer = tempera("merge", judged / "run", judged / "base", "-o", judged / "best", "--json")
    document = answer.document
    assert [point["weight"] for point in document["points"]] == [0, 0.5, 1]
    assert len(document["points"][0]["scores"]) == 2  # validation, and the run's evaluation.also
    assert document["kept"] >= 0.95 and (judged / "run" / "merge.png").stat().st_size > 1000
    share = document["weight"]
    expected = share * weights(judged / "run" / "model") + (1 - share) * weights(judged / "base")
    torch.testing.assert_close(weights(judged / "best"), expected)


def test_the_best_keeps_the_gain_and_is_best_elsewhere() -> None:
    curve = points(
        (0, 0.4, 0.6, 0.5), (0.6, 0.595, 0.58, 0.5), (0.8, 0.6, 0.54, 0.5), (1, 0.6, 0.5, 0.5)
    )
    best = choose_weight(curve)
    assert (
        best["weight"] == 0.6
        and best["kept"] == pytest.approx(0.975)
        and best["lost"] == pytest.approx(0.2)
    )
    worse = choose_weight(points((0, 0.4, 0.6), (0.6, 0.5, 0.58), (1, 0.6, 0.5)))
    assert worse["weight"] == 1 and worse["sentence"].endswith(
        "no weight keeps 95 % with at most a third of it"
    )
    assert (
        choose_weight(points((0, 0.6), (0.5, 0.5), (1, 0.4)))["weight"] == 0
    )  # training gained nothing
    assert (
        choose_weight(points((0, 0.4), (0.5, 0.7), (1, 0.6)))["weight"] == 0.5
    )  # and without other data


def test_what_cannot_be_merged(judged: Path, tmp_path: Path) -> None:
    for vocabulary, width, says in (
        (300, 8, r"shapes differ \(0.embedding.weight: \("),
        (9, 16, "tokenizers differ"),
    ):
        source = (judged / "base" if vocabulary == 300 else tmp_path / "none") / "tokenizer.json"
        tower = StaticTower(train_tokenizer(["a b c"], vocabulary, 16), width)
        if source.is_file():
            from tokenizers import Tokenizer

            tower = StaticTower(Tokenizer.from_file(str(source)), width)
        tower.save(tmp_path / f"other{width}")
        with pytest.raises(DataError, match=says):
            merge(judged / "run", tmp_path / f"other{width}", weights=0.5, output=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(ConfigError, match="give a weight of the run from 0 to 1, and --output"):
        merge(judged / "run", judged / "base", weights=0.5)
    with pytest.raises(ConfigError, match=r"merge: weights is a number or None, not \[0.5\]"):
        merge(judged / "run", judged / "base", weights=[0.5], output=tmp_path / "x")  # type: ignore[arg-type]
    for output in (judged / "run", judged / "base" / "inside"):
        with pytest.raises(OutputError, match="is one of the models that are merged, or in one"):
            merge(judged / "run", judged / "base", weights=0.5, output=output, overwrite=True)
    with pytest.raises(
        DataError, match="is not a run, so there are no held-out queries: give --weights"
    ):
        merge(judged / "base", judged / "run")


def test_few_validation_queries_choose_no_weight_to_save(
    judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempera.finished.merge.LEAST_TO_CHOOSE", 61)
    with pytest.raises(
        DataError, match=r"asks 60 queries, fewer than the 61 that choose a weight: give --weights"
    ):
        merge(judged / "run", judged / "base", output=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert len(merge(judged / "run", judged / "base")["points"]) == 11  # a curve all the same


def test_what_is_merged_is_never_replaced(judged: Path) -> None:
    with pytest.raises(OutputError, match=r"is, or holds, .*model, which this command reads"):
        merge(
            judged / "run" / "model",
            judged / "base",
            weights=0.5,
            output=judged / "run",
            overwrite=True,
        )
    assert (judged / "run" / "index").is_dir()
    with pytest.raises(
        ConfigError, match=r"--weights is given, so nothing is evaluated: drop it, or none.csv"
    ):
        merge(judged / "run", judged / "base", ["none.csv"], weights=0.5, output=judged / "fifth")


def test_a_base_that_has_learned_validation_is_judged_by_the_model_that_had_not(
    judged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = config.load(judged / "run" / "config.yaml").values
    options["train"] |= {"refit": "auto", "seed": 1}
    base = train(options, tmp_path / "base").folder
    before = torch.zeros_like(weights(base / "evaluated"))
    save_file({"embedding.weight": before}, base / "evaluated" / "model.safetensors")
    write_manifest_again(base)
    caplog.set_level("INFO")
    at_base = [
        merge(judged / "run", each)["points"][0]["scores"]["validation"]
        for each in (base, base / "model")
    ]
    assert (
        at_base[0] < 0.3 < 0.6 < at_base[1]
    )  # the evaluated model has no vectors now, the saved one has
    assert caplog.text.count(f"the curve is between {base / 'evaluated'} and ") == 1


def test_other_data_are_not_taken_for_the_own_validation(
    judged: Path, pairs_file: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(judged, "models")
    export_held_out("models/run", "validation")
    with pytest.raises(
        DataError, match=r"are called validation, as the run's own: .* \./validation"
    ):
        merge("models/run", "models/base", also=["validation"])
    assert {*merge("models/run", "models/base", also=["./validation"])["points"][0]["scores"]} == {
        "validation",
        "./validation",
    }


def test_a_gain_elsewhere_is_called_one() -> None:
    found = choose_weight(points((0, 0.4, 0.6, 0.6), (0.5, 0.59, 0.62, 0.62), (1, 0.6, 0.5, 0.5)))
    assert found["sentence"].endswith(", and is better on the other data than the base")


def test_a_merged_model_knows_what_both_have_learned(judged: Path, tmp_path: Path) -> None:
    base, learned = tmp_path / "base", np.load(judged / "run" / "trained.npy")
    shutil.copytree(judged / "base", base)
    merge(judged / "run", base, weights=0.5, output=tmp_path / "merged")
    assert len(learned) and np.array_equal(np.load(tmp_path / "merged" / "trained.npy"), learned)
    np.save(base / "trained.npy", np.array([7, int(learned[0])]))
    merge(judged / "run", base, weights=0.5, output=tmp_path / "both")
    assert np.load(tmp_path / "both" / "trained.npy").tolist() == sorted({7, *learned.tolist()})
