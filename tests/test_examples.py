"""Every recipe runs as its own comments say, at a small size: on made-up data, and on part of the
real data if it is there."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import yaml

from tempera.cli import app
from tempera.towers.transformer import Transformer

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPES = sorted(EXAMPLES.glob("*.yaml"))
CODE = Path(__file__).parents[1] / "src" / "tempera" / "core"
SYLLABLES = [
    a + b
    for a in ("ka", "lo", "mi", "nu", "ra", "to", "vi", "zu")
    for b in ("ban", "cel", "dor", "fin", "gar")
]
# Little in the made-up queries stands in their answers, so that few steps need a high rate.
STATIC = [
    "tower.kind=static",
    "tower.dimensions=16",
    "tower.vocabulary=300",
    "train.learning_rate=0.03",
]
SMALL = ["train.batch_size=16", "train.max_steps=40", "evaluation.queries=30"]
# How each recipe is made small; towers by name in folders that the test makes.
SHRUNK = {
    "nli": [*SMALL, "tower.model=tiny", "train.learning_rate=0.003"],
    "duplicates": [*SMALL, "tower.model=tiny", "train.learning_rate=0.003"],
    "passages": [*SMALL, *STATIC],
    "code": [
        *SMALL,
        f"data.roots=[{CODE}]",
        *("tower.layers=1", "tower.width=32", "tower.vocabulary=500", "tower.max_length=64"),
    ],
}
RECOMMENDER = [
    *(
        "train.batch_size=256",
        "train.max_steps=160",
        "train.learning_rate=0.01",
        "evaluation.queries=100",
    ),
    *("tower.dimensions=16", "tower.query_layers=[32]"),
]
SHRUNK |= dict.fromkeys(
    ("movielens", "movielens_cold", "movielens_time", "movielens_tfrs"), RECOMMENDER
)
SHRUNK["movielens_cold"] = [
    *RECOMMENDER,
    "train.keep_best=false",
]  # so few steps help with new items alone
QUICK = ("duplicates", "movielens")  # one of texts and one of interactions; the others are `long`
Columns = dict[str, list[object]]


def text(draw: random.Random, common: list[str], kept: int) -> str:
    words = common[:kept] + draw.sample(SYLLABLES, 2)
    draw.shuffle(words)
    return " ".join(words)


def made_up(count: int) -> Columns:
    """An answer has three words of its query, what contradicts it one; both are written backwards,
    which is to be learned."""
    draw = random.Random(count)
    words = [draw.sample(SYLLABLES, 3) for _ in range(count)]
    backwards = [[word[::-1] for word in common] for common in words]
    sides = {"anchor": (words, 3), "positive": (backwards, 3), "negative": (backwards, 1)}
    return {
        name: [text(draw, common, kept) for common in side] for name, (side, kept) in sides.items()
    }


def made_up_data(folder: Path) -> None:
    rows, test = made_up(200), made_up(60)
    pairs = {"anchor": rows["anchor"], "positive": rows["positive"]}
    held_out = {"anchor": test["anchor"], "positive": test["positive"]}
    save(folder / "nli" / "triplets.parquet", {**rows, "source": ["made up"] * 200})
    graded = {"sentence1": test["anchor"] * 2, "sentence2": test["positive"] + test["negative"]}
    save(folder / "stsb" / "test.parquet", {**graded, "score": [1.0] * 60 + [0.2] * 60})
    for name in ("duplicates", "passages"):
        save(folder / name / "train.parquet", pairs)
        save(folder / name / "test.parquet", held_out)
    draw = random.Random(0)
    starts = [draw.randrange(40) for _ in range(60)]
    taken = [
        (user, (7 * (start + i) + draw.randrange(3)) % 40)
        for user, start in enumerate(starts)
        for i in range(20)
    ]
    interactions(folder, taken, [f"{SYLLABLES[item]} {SYLLABLES[-item]}" for item in range(40)])


def interactions(folder: Path, taken: list[tuple[int, int]], titles: list[str]) -> None:
    """Users and what they have taken, in order; items with titles and genres."""
    times = list(range(len(taken)))
    users, items = zip(*taken, strict=True)
    columns: Columns = {"user_id": list(users), "item_id": list(items), "timestamp": list(times)}
    save(folder / "movielens" / "interactions.parquet", columns)
    genres = ["Comedy|Drama" if i % 2 else "Drama" for i in range(len(titles))]
    ids: list[object] = list(range(len(titles)))
    save(
        folder / "movielens" / "items.parquet",
        {"item_id": ids, "title": list(titles), "genres": list(genres)},
    )
    new_items(folder)


def new_items(folder: Path) -> None:
    """Two that nobody has taken."""
    titles = [" ".join(SYLLABLES[:3]), SYLLABLES[5]]
    columns: Columns = {
        "item_id": [10**6, 10**6 + 1],
        "title": [*titles],
        "genres": ["Drama", None],
    }
    save(folder / "movielens" / "new_items.parquet", columns)


def recommended(document: dict[str, list[object]]) -> None:
    assert 0 < len(document["hits"]) <= 10


def added(document: dict[str, int]) -> None:
    assert document["added"] == 2


def real_data(folder: Path) -> None:
    """The first rows of public data, in the names that the recipes have for them."""
    source = Path(os.environ["TEMPERA_DATA"])
    for name in ("nli/triplets", "stsb/test"):
        table = parquet.read_table(source / f"{name}.parquet").slice(0, 300)
        save(folder / f"{name}.parquet", table.to_pydict())
    for name, whole in (("duplicates", "duplicates/qqp_pairs"), ("passages", "medquad/pairs")):
        table = parquet.read_table(source / f"{whole}.parquet", columns=["anchor", "positive"])
        save(folder / name / "train.parquet", table.slice(0, 300).to_pydict())
        save(folder / name / "test.parquet", table.slice(300, 80).to_pydict())
    for name in ("interactions", "items"):
        table = parquet.read_table(source / "movielens-100k" / f"{name}.parquet")
        save(
            folder / "movielens" / f"{name}.parquet",
            {k: v for k, v in table.to_pydict().items() if k != "rating"},
        )
    new_items(folder)


def save(path: Path, columns: Columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def tiny_transformer(folder: Path) -> None:
    """A random one, far enough from zero that texts differ."""
    torch.manual_seed(0)
    texts = [str(value) for column in made_up(50).values() for value in column]
    tower = Transformer(
        layers=1, width=32, heads=2, vocabulary=300, max_length=64, dropout=0.0
    ).build(texts)
    for parameter in tower.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    tower.save(folder)


@pytest.fixture(params=[made_up_data, real_data])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recipes, their data and a tiny model, in which commands run."""
    if request.param is real_data and "TEMPERA_DATA" not in os.environ:
        pytest.skip("TEMPERA_DATA names no folder of real data")
    request.param(tmp_path / "data")
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    tiny_transformer(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(recipe: Path) -> list[list[str]]:
    """What the comments of a recipe say to run."""
    lines = re.findall(r"^#\s+(tempera .*)$", recipe.read_text(encoding="utf-8"), re.M)
    return [shlex.split(line)[1:] for line in lines]


def test_every_recipe_is_tried() -> None:
    assert [recipe.stem for recipe in RECIPES] == sorted(SHRUNK)


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(r, id=r.stem, marks=() if r.stem in QUICK else pytest.mark.long)
        for r in RECIPES
    ],
)
def test_a_recipe_runs_as_it_says(
    recipe: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    steps = commands(recipe)
    assert f"examples/{recipe.name}" in [argument for step in steps for argument in step]
    for step in steps:
        first = step[0] == "train" and f"examples/{recipe.name}" not in step
        small = [*SMALL, *STATIC] if first else SHRUNK[recipe.stem] if step[0] == "train" else []
        app([*step, *small, "--json"], standalone_mode=False)
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        CHECKS[step[0]](document)


def trained(document: dict[str, dict[str, dict[str, float]]]) -> None:
    metrics = document["metrics"]
    assert metrics["trained"]["ndcg@10"] > metrics["untrained"]["ndcg@10"]


def judged(document: dict[str, list[dict[str, dict[str, dict[str, dict[str, float]]]]]]) -> None:
    ((first, *_),) = (list(task["systems"].values()) for task in document["tasks"])
    for found in first.values():
        assert found["low"] <= found["mean"] <= found["high"]
    assert max(found["mean"] for found in first.values()) > 0.1


def mined(document: dict[str, int]) -> None:
    assert document["queries"] > 100
    assert parquet.read_metadata(str(document["output"])).num_rows == document["queries"]


def searched(document: dict[str, list[object]]) -> None:
    assert len(document["hits"]) == 10


CHECKS: dict[str, Callable[..., None]] = {
    "train": trained,
    "evaluate": judged,
    "mine": mined,
    "search": searched,
    "recommend": recommended,
    "add-items": added,
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_says_what_it_does(recipe: Path) -> None:
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[: len(comments)] == comments
    assert "Result" in "".join(comments), "what was measured, and on what"
    path = yaml.safe_load("\n".join(lines))["data"].get("path", "data/")
    assert path.startswith("data/"), "a placeholder, and not a place of one machine"
