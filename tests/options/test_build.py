"""Options to objects: what is taken, what is refused and in which words, and that the resolved
options make it again."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.core.masks import SameId
from tempera.core.objective import Objective
from tempera.core.pools import POOLS, Pool
from tempera.core.similarity import cosine, dot
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.errors import ConfigError, TemperaError
from tempera.options.build import Config, build
from tempera.options.builder import Builder
from tempera.options.names import PARTS, PLAIN, hints_of
from tempera.options.yaml_options import Options, dump, load, of
from tempera.recommend.train.history import History
from tempera.text.read.installed_python import InstalledPython
from tempera.text.read.sources import PairsFile
from tempera.towers.lora import Lora

PRESETS = list(PARTS[Objective])


def made(*overrides: str) -> Config:
    return build(load(None, overrides))


def refusal(*overrides: str) -> str:
    """The one line with which options are refused."""
    with pytest.raises(ConfigError) as caught:
        made(*overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_are_chosen_among_pairs_of_texts_alone() -> None:
    share = ["train.select=0.8", "train.guide=model"]
    assert made(*share).train.select == 0.8
    interactions = refusal(*share, "data.source=interactions", "data.path=events.csv")
    assert interactions.startswith(
        "train.select: chooses among pairs of texts, and the data are interactions"
    )
    teacher = ["train.teacher=model", "objective.teacher.weight=1"]
    documents = refusal(*share, "data.source=documents", "data.path=texts", *teacher)
    assert documents.startswith(
        "train.select: chooses among pairs of texts, and the data are documents without pairs"
    )
    corrected = refusal(*share, "objective.preset=sampled_softmax")
    assert "which log_q corrects for: give objective.corrections=[]" in corrected
    assert (
        made(*share, "objective.preset=sampled_softmax", "objective.corrections=[]").train.select
        == 0.8
    )


@pytest.mark.parametrize(
    "option",
    [
        "mining.again=5",
        "mining.cross_encoder=model",
        "train.guide=model",
        "evaluation.shared_documents=keep",
        "evaluation.corpus=500",
        "train.batch_sampler=no_duplicates",
        "train.teacher=m",
    ],
)
def test_what_does_nothing_for_interactions_is_refused(option: str) -> None:
    said = refusal(option, "data.source=interactions", "data.path=events.csv")
    assert re.match(r"[a-z_.]+: is for models of texts, and the data are interactions", said), said


def test_samples_that_no_pool_compares_are_refused() -> None:
    """LogQ would count how often they are drawn, and nothing else would."""
    said = "train.sampled: draws candidates, but no pool of the objective has them: add sampled to objective.pools"
    assert refusal("train.sampled=64", "objective.pools=[docs]").startswith(said)
    assert refusal("train.sampled=64", "objective.preset=simcse").startswith(said)
    assert made("objective.pools=[docs]", "train.sampled=0").train.sampled == 0
    assert (
        made("train.sampled=64").train.sampled
        == made("train.sampled=64", "objective.pools=[docs,sampled]").train.sampled
    )
    teacher = ["train.teacher=m", "objective.teacher.pools=[docs,sampled]"]
    assert made("train.sampled=64", "objective.pools=[docs]", *teacher).train.sampled == 64


@pytest.mark.parametrize("option", ["evaluation.cold_items=0.1", "evaluation.baselines=true"])
def test_what_does_nothing_for_texts_is_refused(option: str) -> None:
    assert "is for recommenders, and the data are texts" in refusal(option)


def test_nothing_given_is_the_default_job() -> None:
    config = made()
    assert isinstance(config.data, InstalledPython)
    assert config.objective.similarity is cosine
    assert config.objective.temperature.value == pytest.approx(0.05)
    assert not config.objective.temperature.learnable
    assert config.objective.masks == (SameId(),)
    assert list(config.resolved) == [
        "data",
        "tower",
        "objective",
        "train",
        "evaluation",
        "mining",
        "card",
    ]


@pytest.mark.parametrize("section", ["data", "tower", "objective", "train", "evaluation"])
def test_an_empty_section_is_its_defaults(section: str) -> None:
    assert made(f"{section}=").resolved == made(f"{section}={{}}").resolved == made().resolved


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "objective.temprature=1",
            "objective.temprature: no such option. Did you mean temperature?",
        ),
        ("objctive.temperature=1", "objctive: no such option. Did you mean objective?"),
        ("train.batchsize=3", "train.batchsize: no such option. Did you mean batch_size?"),
        ("evaluation.metric=[mrr@10]", "evaluation.metric: no such option. Did you mean metrics?"),
        ("tower.dimension=3", "tower.dimension: no such option. Did you mean dimensions?"),
        ("data.root=[x]", "data.root: no such option. Did you mean roots?"),
        (
            "objective.temperature.learnabel=true",
            "objective.temperature.learnabel: no such option. Did you mean learnable?",
        ),
        (
            "objective.masks=[{same_id: {kind: 1}}]",
            "objective.masks[0].same_id.kind: no such option; ",
        ),
        ("objective.preset=mrn", "objective.preset: no 'mrn'; there is mnr, symmetric"),
        ("objective.similarity=cosin", "objective.similarity: no 'cosin'; there is cosine, dot."),
        ("objective.masks=[same_ids]", "objective.masks[0]: no 'same_ids'; there is same_id"),
        (
            "objective.pools=[docs, negative]",
            "objective.pools[1]: no 'negative'; there is docs, negatives, ",
        ),
        (
            "data.source=pair",
            "data.source: no 'pair'; there is installed_python, pairs, beir, given, text_files, documents, mixture, interactions.",
        ),
        (
            "tower.kind=statics",
            "tower.kind: no 'statics'; there is static, pretrained, transformer, two, features.",
        ),
    ],
)
def test_names_that_do_not_exist(override: str, message: str) -> None:
    text = refusal(override)
    assert text.startswith(message)
    hints = {
        "objective.temprature": "temperature",
        "objctive.temperature": "objective",
        "train.batchsize": "batch_size",
        "evaluation.metric": "metrics",
        "tower.dimension": "dimensions",
        "data.root": "roots",
        "objective.temperature.learnabel": "learnable",
        "objective.preset": "mnr",
        "objective.similarity": "cosine",
        "objective.masks": "same_id",
        "objective.pools": "negatives",
        "data.source": "pairs",
        "tower.kind": "static",
    }
    hint = hints[override.partition("=")[0]]
    assert text.endswith(("(command line)", f"Did you mean {hint}? (command line)"))
    if "kind: 1" not in override:
        assert f" Did you mean {hint}?" in text


def test_a_name_that_is_like_nothing_gets_no_question() -> None:
    assert "Did you mean" not in refusal("objective.qqqqqqqq=1")


def test_the_place_is_the_line_of_the_file(tmp_path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  seed: 1\nobjective:\n  masks:\n  - same_id\n  - sam_id\n")
    with pytest.raises(ConfigError, match=rf"^objective\.masks\[1\]: no 'sam_id'.* \({file}:6\)$"):
        build(load(file))
    file.write_text("objective:\n\n  temprature: 1\n")
    with pytest.raises(ConfigError, match=rf"Did you mean temperature\? \({file}:3\)$"):
        build(load(file))
    file.write_text("train:\n  seed: 1\n  batch_size: 1\n")
    with pytest.raises(
        ConfigError, match=rf"^train\.batch_size: is 1; expected more than 1 or auto \({file}:3\)$"
    ):
        build(load(file))
    file.write_text(
        "objective:\n  temperature:\n    value: 0.05\n    learnable: true\n    floor: 0.2\n"
    )
    with pytest.raises(
        ConfigError, match=rf"^objective\.temperature: .*0\.2 <= 0\.05 <= 1\.0 \({file}:2\)$"
    ):
        build(load(file))


@pytest.mark.parametrize("section", ["data", "tower", "objective", "train", "evaluation"])
@pytest.mark.parametrize("value", ["3", "text", "[1]", "true"])
def test_a_section_that_is_no_mapping(section: str, value: str) -> None:
    assert refusal(f"{section}={value}").startswith(f"{section}: is ")


def test_a_temperature_and_a_scale_are_one_dial() -> None:
    assert made("objective.temperature=0.1").objective.temperature.value == pytest.approx(0.1)
    assert made("objective.scale=20").resolved == made("objective.temperature=0.05").resolved
    assert made("objective.scale=12.5").objective.temperature.value == pytest.approx(0.08)
    assert refusal("objective.scale=20", "objective.temperature=0.05") == (
        "objective.scale: scale is 1/temperature; give only one of them (command line)"
    )


def test_a_number_that_yaml_takes_for_text() -> None:
    """YAML 1.1 reads 2e-5, without a point, as text."""
    assert made("train.learning_rate=2e-5").train.learning_rate == 2e-5
    assert made("objective.temperature=5e-2").objective.temperature.value == pytest.approx(0.05)


@pytest.mark.parametrize("dial", ["objective.temperature", "objective.temperature.value"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0", "above 0"),
        ("0.0", "above 0"),
        ("-0.05", "above 0"),
        ("-1", "above 0"),
        ("-.inf", "finite"),
        (".inf", "finite"),
        (".nan", "finite"),
        ("warm", "number"),
        ("''", "number"),
        ("true", "not true or false"),
        ("false", "not true or false"),
        ("[0.05]", "number"),
    ],
)
def test_temperatures_that_cannot_be(dial: str, value: str, says: str) -> None:
    text = refusal(f"{dial}={value}")
    assert text.startswith("objective.temperature")
    assert says in text
    assert text.endswith("(command line)")


def test_a_temperature_of_nothing() -> None:
    for override in ("objective.temperature=", "objective.temperature={value: }"):
        assert refusal(override).startswith("objective.temperature.value: ")


@pytest.mark.parametrize(
    "value", ["0", "0.0", "-20", ".inf", ".nan", "much", "true", "[20]", "", "{value: 20}"]
)
def test_scales_that_cannot_be(value: str) -> None:
    text = refusal(f"objective.scale={value}")
    assert text.startswith("objective.scale: ")
    assert text.endswith("(command line)")


def test_a_scale_of_0_is_refused_with_the_reason() -> None:
    assert (
        "every loss log(candidates) whatever the embeddings, so nothing can be learned"
        in refusal("objective.scale=0")
    )


def test_a_learnable_temperature() -> None:
    dial = made(
        "objective.temperature={value: 0.1, learnable: true, floor: 0.02, ceiling: 0.5}"
    ).objective.temperature
    assert isinstance(dial, Temperature) and dial.learnable
    assert (dial.value, dial.floor, dial.ceiling) == (pytest.approx(0.1), 0.02, 0.5)
    assert made(
        "objective.temperature.learnable=true"
    ).objective.temperature.value == pytest.approx(0.05)


@pytest.mark.parametrize(
    "bounds",
    [
        "floor: 0.2",
        "ceiling: 0.01",
        "floor: 0",
        "floor: -1",
        "floor: .nan",
        "floor: 0.1, ceiling: 0.05",
        "ceiling: x",
    ],
)
def test_a_learnable_temperature_starts_within_its_bounds(bounds: str) -> None:
    text = refusal(f"objective.temperature={{value: 0.05, learnable: true, {bounds}}}")
    assert text.startswith("objective.temperature")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["objective.hardest=0"], "objective: hardest keeps at least 1 negative and is 0; None keeps all"),
        (["objective.hardest=-3"], "objective: hardest keeps at least 1 negative and is -3"),
        (["objective.hardest=0", "objective.masks=[]"], "objective: hardest keeps at least 1 negative"),
        (["objective.hardest=1.5"], "objective.hardest: "),
        (["objective.hardest=true"], "objective.hardest: is true, but this option is not true or false"),
        (["objective.pools=[]"], "objective: "),
        (["objective.pools=[negatives]"], "objective: no pool holds the positive"),
        (["objective.pools=[docs, back_docs]", "objective.partition=per_direction"], "objective: no pool holds the positive"),
        (["objective.pools=[docs, queries]", "objective.partition=per_direction"], "objective: no pool holds the positive"),
        (["objective.partition=both"], "objective.partition: is 'both'; expected one of 'joint', 'per_direction'"),
        (["objective.pools=docs"], "objective.pools: is 'docs'; expected a list"),
        (["objective.pools={docs: }"], "objective.pools: is {'docs': None}; expected a list"),
        (["objective.pools=[{docs: {x: 1}}]"], "objective.pools[0]: docs takes no options"),
        (["objective.pools=[[docs]]"], "objective.pools[0]: no ['docs']; there is docs, "),
        (["objective.masks=[null]"], "objective.masks[0]: no None; there is same_id"),
        (["objective.masks=[{same_id: {}, x: {}}]"], "objective.masks[0]: is {'same_id': {}, 'x': {}}; expected one name with"),
        (["objective.masks=[{}]"], "objective.masks[0]: is {}; expected one name with its options"),
        (["objective.masks=[{same_id: 3}]"], "objective.masks[0].same_id: is 3; expected a mapping of options"),
        (["objective.preset=[mnr]"], "objective.preset: no ['mnr']; there is mnr"),
        (["objective.preset={mnr: 1}"], "objective.preset: no {'mnr': 1}; there is mnr"),
        (["objective.preset="], "objective.preset: no None; there is mnr"),
        (["objective.similarity=[cosine]"], "objective.similarity: no ['cosine']; there is cosine"),
        (["objective.precisions=[int4]"], "objective.precisions[0]: is 'int4'; expected one of 'int8', 'binary'"),
        (["objective.precisions=int8"], "objective.precisions: is 'int8'; expected a list"),
        (["objective.matryoshka=[]"], "objective.matryoshka: matryoshka: one weight for each width"),
        (["train.batch_size=1"], "train.batch_size: is 1; expected more than 1"),
        (["train.batch_size=true"], "train.batch_size: is true, but this option is not true or false"),
        (["train.batch_size=many"], "train.batch_size: is 'many'; expected a whole number or auto"),
        (["train.learning_rate=high"], "train.learning_rate: is 'high'; expected a number or auto"),
        (["tower.dimensions=abc"], "tower.dimensions: is 'abc'; expected a whole number or auto"),
        (["tower.dimensions=abc", "recipe=none"], "tower.dimensions: is 'abc'; expected a whole number (command line)"),
        (["train.max_steps=0"], "train.max_steps: "),
        (["train.refit=false"], "train.refit: is false; expected one of 'none', 'validation', 'all', 'auto' (command line)"),
        (["train.max_steps=true"], "train.max_steps: is true, but this option is not true or false"),
        (["train.num_train_epochs=.inf"], "train.num_train_epochs: is inf; expected a finite number"),
        (["train.learning_rate=.nan"], "train.learning_rate: is nan; expected a finite number"),
        (["train.learning_rate=0"], "train.learning_rate: "),
        (["train.seed=-1"], "train.seed: is -1; expected at least 0"),
        (["train.seed=1.5"], "train.seed: is 1.5; expected a whole number"),
        ([f"train.seed={10**30}"], "train.seed: "),
        (["train.warmup_ratio=1.1"], "train.warmup_ratio: is 1.1; expected at most 1"),
        (["train.lr_scheduler_type=step"], "train.lr_scheduler_type: is 'step'; expected one of 'linear', 'cosine', 'constant'"),
        (["train.max_grad_norm=-1"], "train.max_grad_norm: "),
        (["evaluation.queries=-1"], "evaluation.queries: is -1; expected at least 0"),
        (["train.report_to=none"], "train.report_to: is 'none'; expected a list, such as [tensorboard], or [] for none"),
        (["train.report_to=wandb"], "train.report_to: is 'wandb'; expected a list, such as [wandb]"),
        (["evaluation.metrics=ndcg@10"], "evaluation.metrics: is 'ndcg@10'; expected a list"),
        (["evaluation.metrics=[ndcg]"], "evaluation: no metric 'ndcg'; give one of "),
        (["evaluation.metrics=[ndcg@0]"], "evaluation: no metric 'ndcg@0'; "),
        (["evaluation.metrics=[3]"], "evaluation.metrics[0]: "),
        (["evaluation.bm25=perhaps"], "evaluation.bm25: is 'perhaps'; expected true or false"),
        (["data.source=pairs"], "data.path: is required"),
        (["data.source=pairs", "data.path=3"], "data.path: is 3; expected a text"),
        (["data.source=pairs", "data.path="], "data.path: "),
        (["data.roots=src"], "data.roots: "),
        (["data.path=[a]"], "data.path: "),
    ],
)  # fmt: skip
def test_values_that_an_option_cannot_take(overrides: list[str], says: str) -> None:
    text = refusal(*overrides)
    assert text.startswith(says)
    assert text.endswith(" (command line)") or "is required" in text


def test_a_long_value_is_cut_short_in_the_message() -> None:
    assert len(refusal(f"train.batch_size={'x' * 10_000}")) < 300
    assert len(refusal(f"objective.pools={{a: [{', '.join(['xy'] * 5_000)}]}}")) < 300
    assert len(refusal(f"objective.masks=[{'x' * 10_000}]")) < 400


def test_parts_by_name_and_with_options() -> None:
    config = made(
        "objective.similarity=dot",
        "objective.masks=[same_id: ]",
        "objective.pools=[docs, back_queries]",
    )
    assert config.objective.similarity is dot
    assert config.objective.masks == (SameId(),)
    assert [pool.name for pool in config.objective.pools] == ["docs", "back_queries"]
    assert made("objective.masks=[]").objective.masks == ()
    pairs = made("data.source=pairs", "data.path=x.jsonl", "data.query=title").data
    assert pairs == PairsFile("x.jsonl", query="title")
    assert made("objective.hardest=3").objective.hardest == 3
    assert {pool.name for pool in POOLS} == set(PARTS[Pool])


@pytest.mark.parametrize(
    "options",
    [
        {"precisions": ["int8", "binary"]},
        {"matryoshka": {"widths": [2], "weights": [0.5]}, "precisions": ["binary"]},
    ],
)
def test_precisions_stand_beside_the_widths_or_alone(options: dict[str, Any]) -> None:
    config = build(Options({"objective": options}))
    assert list(config.objective.precisions) == options["precisions"]
    assert config.objective.widths == ((2,) if "matryoshka" in options else None)
    assert options.items() <= config.resolved["objective"].items()
    assert build(Options({"objective": config.resolved["objective"]})).resolved == config.resolved
    assert isinstance(build(Options({"objective": {"precisions": []}})).objective, Objective)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_masks_equal_ids_unless_told_otherwise(preset: str) -> None:
    assert SameId() in made(f"objective.preset={preset}").objective.masks
    assert made(f"objective.preset={preset}", "objective.masks=[]").objective.masks == ()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dial", ["0.07", "{value: 0.07, learnable: true}"])
def test_resolved_options_resolve_to_themselves(preset: str, dial: str, tmp_path) -> None:
    first = made(
        f"objective.preset={preset}",
        f"objective.temperature={dial}",
        "data.roots=[a, b]",
        "train.max_steps=3",
    )
    file = tmp_path / "config.yaml"
    file.write_text(dump(first.resolved))
    again = build(load(file))
    assert again.resolved == first.resolved
    assert dump(again.resolved) == dump(first.resolved)
    for part in ("similarity", "pools", "corrections", "masks", "partition", "hardest"):
        assert getattr(again.objective, part) == getattr(first.objective, part), part
    assert again.objective.temperature.value == first.objective.temperature.value
    assert again.objective.temperature.learnable == first.objective.temperature.learnable
    assert (again.data, again.tower, again.train, again.evaluation) == (
        first.data,
        first.tower,
        first.train,
        first.evaluation,
    )


def test_resolved_options_are_plain_and_whole() -> None:
    """Every option of every section stands there, as YAML has it."""

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(item) for key, item in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return (
            value is None
            or type(value) in (str, bool, int)
            or (type(value) is float and math.isfinite(value))
        )

    for preset in PRESETS:
        resolved = made(f"objective.preset={preset}").resolved
        assert plain(resolved), preset
        assert {
            "preset",
            "similarity",
            "temperature",
            "pools",
            "masks",
            "partition",
            "hardest",
        } <= set(resolved["objective"])
        assert {"value", "learnable", "floor", "ceiling"} <= set(
            resolved["objective"]["temperature"]
        )
        assert {"batch_size", "num_train_epochs", "max_steps", "learning_rate", "seed"} <= set(
            resolved["train"]
        )


NAMES = st.sampled_from(
    [
        *(
            "data",
            "tower",
            "objective",
            "train",
            "evaluation",
            "source",
            "kind",
            "preset",
            "temperature",
            "scale",
        ),
        *(
            "similarity",
            "pools",
            "masks",
            "corrections",
            "partition",
            "hardest",
            "value",
            "learnable",
            "floor",
            "roots",
        ),
        *(
            "same_id",
            "docs",
            "batch_size",
            "seed",
            "metrics",
            "bm25",
            "path",
            "dimensions",
            "max_steps",
            "mnr",
        ),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | NAMES
    | st.dates()
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
SECTIONS = st.dictionaries(
    st.sampled_from(["data", "tower", "objective", "train", "evaluation"]) | st.text(max_size=5),
    st.dictionaries(NAMES, VALUES, max_size=3) | VALUES,
    max_size=3,
)


def built_or_refused(values: dict[str, Any]) -> None:
    try:
        config = build(of(values))
    except TemperaError:  # a path is looked at, to detect the form of its data
        return
    assert build(of(config.resolved)).resolved == config.resolved


@settings(max_examples=60, deadline=None)
@given(SECTIONS)
def test_any_options_are_built_or_refused(values: dict[str, Any]) -> None:
    built_or_refused(values)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [(section, key) for section, given in made().resolved.items() for key in given]
    ),
    VALUES,
)
def test_any_value_of_an_option_is_built_or_refused(option: tuple[str, str], value: Any) -> None:
    built_or_refused({option[0]: {option[1]: value}})


@pytest.mark.parametrize(
    ("tower", "rate"),
    [
        ("{kind: static}", 0.003),
        ("{kind: static, init: normal}", 0.003),
        ("{kind: transformer}", 5e-4),
        ("{kind: pretrained, model: some/model}", 5e-5),
        ("{kind: pretrained, model: some/model, lora: 8}", 2e-4),
    ],
)
def test_the_learning_rate_is_the_towers_where_nothing_is_said(tower: str, rate: float) -> None:
    assert made(f"tower={tower}").train.learning_rate == rate
    assert made(f"tower={tower}").resolved["train"]["learning_rate"] == rate
    assert made(f"tower={tower}", "train.learning_rate=0.1").train.learning_rate == 0.1


@pytest.mark.parametrize(
    ("tower", "precision"),
    [
        ("{kind: static}", "no"),
        ("{kind: transformer}", "no"),
        ("{kind: pretrained, model: some/model}", "auto"),
        ("{kind: pretrained, model: some/model, lora: 8}", "auto"),
    ],
)
def test_a_pretrained_transformer_takes_the_precision_that_pays(tower: str, precision: str) -> None:
    assert made(f"tower={tower}").train.mixed_precision == precision
    assert made(f"tower={tower}").resolved["train"]["mixed_precision"] == precision
    assert made(f"tower={tower}", "train.mixed_precision=no").train.mixed_precision == "no"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("lr=0.1", r"^lr: no such option\. Did you mean train\.learning_rate\?"),
        ("batch_size=8", r"^batch_size: no such option\. Did you mean train\.batch_size\?"),
        ("xyzzy=8", "^xyzzy: no such option; a configuration takes data, tower, objective"),
    ],
)
def test_an_option_without_its_section_is_told_where_it_is(given: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(load(None, [given]))


def takes_numbers(hint: Any) -> bool:
    """Whether a float is among what an annotation names, in a list or a mapping, too."""
    return hint is float or any(map(takes_numbers, get_args(hint)))


def with_numbers() -> list[Any]:
    """Every option of every registered part that takes a number with decimals."""
    makers: dict[Any, str] = {
        part: name
        for parts in PARTS.values()
        for name, part in parts.items()
        if inspect.isclass(part) or inspect.isfunction(part)
    }
    makers |= {part: name for name, part in PLAIN.items()}
    makers |= {Temperature: "temperature", Teacher: "teacher", Lora: "lora", History: "history"}
    return [
        pytest.param(hint, id=f"{name}.{option}")
        for make, name in makers.items()
        for option, hint in hints_of(make).items()
        if takes_numbers(hint)
    ]


@pytest.mark.parametrize("hint", with_numbers())
def test_no_option_is_nan_or_infinite(hint: Any) -> None:
    """By itself, in a list and as a value of a mapping: one line that names the option."""
    for number in (math.nan, math.inf, -math.inf):
        for value in (number, [1.0, number], {"a": number}):
            with pytest.raises(ConfigError, match=r"^part\.option") as refusal:
                Builder(Options({})).value(hint, value, "part.option")
            assert "\n" not in str(refusal.value)


def test_options_that_hold_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("train: &all\n  seed: [*all]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="nested too deeply, or hold themselves"):
        build(load(tmp_path / "config.yaml"))
