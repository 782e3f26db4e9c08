"""YAML and overrides: what they say, and where each option was written."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.core.objective import Objective
from tempera.core.temperature import Temperature
from tempera.engine.training_options import Training
from tempera.errors import ConfigError
from tempera.mining.again import MiningAgain
from tempera.options.build import build
from tempera.options.builder import Builder
from tempera.options.names import PARTS, hints_of
from tempera.options.yaml_options import COMMAND_LINE, Options, dump, inline, load, of, parse
from tempera.recommend.train.history import History
from tempera.task.evaluation import Evaluation
from tempera.task.showcase import Labels
from tempera.towers.lora import Lora


@pytest.fixture
def refusal(tmp_path):
    """Loads a file with the given content, which must be refused in one line; `{file}` in the
    answer is its path."""

    def message(content: str | bytes, *overrides: str) -> str:
        file = tmp_path / "conf.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError) as caught:
            load(file, overrides)
        text = str(caught.value)
        assert "\n" not in text and len(text) < 400
        return text.replace(str(file), "{file}")

    return message


@pytest.fixture
def loaded(tmp_path):
    """Loads a file with the given content; its places name the file as `conf.yaml`."""

    def options(content: str, *overrides: str) -> Options:
        file = tmp_path / "conf.yaml"
        file.write_text(content)
        found = load(file, overrides)
        return Options(
            found.values,
            {key: place.replace(str(file), "conf.yaml") for key, place in found.places.items()},
        )

    return options


def test_values_and_their_lines(loaded) -> None:
    options = loaded(
        "# comment\nobjective:\n  temperature: 0.1\n\n  masks:\n    - same_id\ntrain: {seed: 3}\n"
    )
    assert options.values == {
        "objective": {"temperature": 0.1, "masks": ["same_id"]},
        "train": {"seed": 3},
    }
    assert options.places == {
        "objective": "conf.yaml:2",
        "objective.temperature": "conf.yaml:3",
        "objective.masks": "conf.yaml:5",
        "objective.masks[0]": "conf.yaml:6",
        "train": "conf.yaml:7",
        "train.seed": "conf.yaml:7",
    }


def test_the_place_of_what_is_not_written_is_that_of_what_holds_it(loaded) -> None:
    options = loaded("objective:\n  masks:\n  - same_id\n")
    assert options.place("objective.masks[0].same_id.kind") == "conf.yaml:3"
    assert options.place("objective.masks[7]") == "conf.yaml:2"
    assert options.place("objective.hardest") == "conf.yaml:1"
    assert options.place("train.seed") == ""
    assert load(None, ["a.b=1"]).place("a") == COMMAND_LINE


@pytest.mark.parametrize("content", ["", "\n", "# nothing yet\n", "---\n", "null\n", "~"])
def test_a_file_that_says_nothing_is_no_options(loaded, content: str) -> None:
    assert loaded(content).values == {}
    assert loaded(content, "train.seed=1").values == {"train": {"seed": 1}}


def test_no_file_at_all() -> None:
    assert load(None) == Options()


@pytest.mark.parametrize(
    ("content", "holds"),
    [("- a\n", "list"), ("text", "str"), ("3", "int"), ("2.5", "float"), ("true", "bool")],
)
def test_a_file_that_holds_no_mapping(refusal, content: str, holds: str) -> None:
    assert (
        refusal(content)
        == f"{{file}} holds {holds}; expected a mapping of sections, such as data: and train:"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("train:\n  seed: [1, 2\n", 3),
        ("train:\n\tseed: 1\n", 2),
        ("train: {seed: 1\nobjective: {}\n", 2),
        ("train:\n  seed: 1\n objective: 2\n", 3),
        ("a: b: c\n", 1),
        ("a: 'open\n", 2),
        ("a: *nobody\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: !!python/object/apply:os.system [echo]\n", 1),
        ("a: !unknown 1\n", 1),
        ("\n? [1, 2]\n: 3\n", 2),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line(refusal, content: str, line: int) -> None:
    message = refusal(content)
    assert message.startswith("{file} is not YAML: ")
    assert message.endswith(f"({{file}}:{line})")


@pytest.mark.parametrize(
    "content",
    [
        "a: !!int ''\n",
        "a: !!float x\n",
        "a: !!bool perhaps\n",
        "a: !!timestamp x\n",
        "a: \x00\n",
    ],
)
def test_values_that_yaml_cannot_make(refusal, content: str) -> None:
    assert refusal(content).startswith("{file} is not YAML: ")


@pytest.mark.parametrize(
    "text", ["\n\n\n\x85    ", "b\n\n  \n c", " \u2028 a", "é😀\x00\x07~", "- a"]
)
def test_odd_spaces_are_written_as_they_are(text: str) -> None:
    values = {"x": text, "y": [text]}
    assert parse(dump(values)) == values


def test_deep_brackets_end_in_one_line(refusal) -> None:
    assert "is not YAML" in refusal("[" * 1_000_000)


def test_tabs_are_named(refusal) -> None:
    assert r"'\t'" in refusal("train:\n\tseed: 1\n")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x80", bytes(range(256)), b"a: \xe9\n"])
def test_a_binary_file(refusal, content: bytes) -> None:
    assert refusal(content).startswith("cannot read {file}: ")


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_huge_nesting(refusal, brackets: str) -> None:
    opening = {"[]": "[", "{}": "{a: "}[brackets]
    message = refusal("a: " + opening * 1_000 + "1" + brackets[1] * 1_000)
    assert message.startswith("{file} is not YAML: ")


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no such file: .*/none\.yaml$"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"^cannot read "):
        load(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("train: {}\nobjective: {}\ntrain: {}\n", "train: written twice, at {file}:1 and {file}:3"),
        ("train:\n  seed: 1\n  seed: 1\n", "train.seed: written twice, at {file}:2 and {file}:3"),
        ("a:\n- b: 1\n  b: 2\n", "a[0].b: written twice, at {file}:2 and {file}:3"),
    ],
)
def test_a_key_given_twice(refusal, content: str, message: str) -> None:
    assert refusal(content) == message


def test_aliases_repeat_and_may_hold_themselves(loaded) -> None:
    assert loaded("a: &x {b: 1}\nc: *x\n").values == {"a": {"b": 1}, "c": {"b": 1}}
    merged = loaded("a: &x {b: 1, d: 1}\nc:\n  <<: *x\n  d: 2\n")
    assert merged.values["c"] == {"b": 1, "d": 2} and merged.place("c.d").endswith(":4")
    itself = loaded("a: &x [*x]\n").values["a"]
    assert itself[0] is itself
    nested = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 5)
    )
    assert len(loaded(nested).values) == 5


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=0.1", 0.1),
        ("a.b=3", 3),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=", None),
        ("a.b=text", "text"),
        ("a.b='3'", "3"),
        ("a.b=x=y", "x=y"),
        ("a.b=[1, two]", [1, "two"]),
        ("a.b={c: {d: 1}}", {"c": {"d": 1}}),
        ("a.b= 7 ", 7),
        ("a.b=no", "no"),
        ("a.b={on: Off}", {"on": "Off"}),
        ("a.b=1:10", "1:10"),
        ("a.b=[8:16, 2020-01-01]", ["8:16", "2020-01-01"]),
        ("a.b=1e-3", 1e-3),
        ("a.b=[1_000, -.5, 0x10, 007]", [1000, -0.5, 16, "007"]),
        ("a.b=data/x y.csv", "data/x y.csv"),
    ],
)
def test_an_override_is_yaml(override: str, value: object) -> None:
    options = load(None, [override])
    assert options.values == {"a": {"b": value}}
    assert options.place("a.b") == COMMAND_LINE


def test_overrides_lie_over_the_file_and_the_last_one_wins(loaded) -> None:
    options = loaded("a:\n  b: 1\n  c: 2\nd: 3\n", "a.b=4", "a.e.f=5", "a.b=6")
    assert options.values == {"a": {"b": 6, "c": 2, "e": {"f": 5}}, "d": 3}
    assert options.place("a.b") == options.place("a.e.f") == COMMAND_LINE
    assert options.place("a.c") == "conf.yaml:3"


def test_an_override_of_a_whole_takes_the_places_below_with_it(loaded) -> None:
    options = loaded("a:\n  b: 1\n  c: [x]\n", "a={b: 2, c: [y]}")
    assert options.values == {"a": {"b": 2, "c": ["y"]}}
    assert options.place("a.b") == options.place("a.c[0]") == COMMAND_LINE


def test_an_override_below_an_empty_section(loaded) -> None:
    assert loaded("a:\nb: 1\n", "a.c=2").values == {"a": {"c": 2}, "b": 1}


def test_an_override_changes_neither_an_alias_nor_the_callers_mapping(loaded) -> None:
    assert loaded("a: &x {b: {c: 1}}\nd: *x\n", "a.b.c=2").values == {
        "a": {"b": {"c": 2}},
        "d": {"b": {"c": 1}},
    }
    mine = {"a": {"b": 1}}
    assert of(mine, ["a.b=2", "c=3"]).values == {"a": {"b": 2}, "c": 3}
    assert mine == {"a": {"b": 1}}
    assert of(mine, "a.b=2").values == {"a": {"b": 2}}, "a text is one override"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a.b", "'a.b': expected an override dotted.key=value, such as objective.temperature=0.1"),
        ("=3", "'=3': expected an override dotted.key=value, such as objective.temperature=0.1"),
        ("a.masks[0]=x", "a.masks[0]: an item of a list cannot be set; set a.masks as a whole"),
        ("s.x=1", "s.x: s is 5 and holds no options; set s as a whole"),
        ("l.0=1", "l.0: l is [1] and holds no options; set l as a whole"),
        ("a={b: 1, b: 2}", "a.b: written twice, at command line and command line"),
    ],
)
def test_overrides_that_cannot_be(refusal, override: str, message: str) -> None:
    assert refusal("s: 5\nl: [1]\n", override) == message


@pytest.mark.parametrize("text", ["[", "{a", "'", "*x", "!!int x", "\t- x: [", "[" * 1_000])
def test_an_override_that_is_not_yaml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not YAML: "):
        load(None, [f"a.b={text}"])


WORDS = [
    "no",
    "on",
    "Off",
    "yes",
    "1:10",
    "2e-5",
    "1_0",
    "007",
    "0o17",
    ".inf",
    "null",
    "",
    "2020-01-01",
    "true",
    "=",
    "<<",
]


def test_dump_is_read_back_also_by_readers_of_the_older_yaml() -> None:
    values = {"b": {"z": 1, "a": [1.5, 1e-5, None, "ü", *WORDS]}, "a": True, "long": "word " * 60}
    for read in (yaml.safe_load, parse):
        assert read(dump(values)) == values
        assert list(read(dump(values))) == ["b", "a", "long"]
    assert load(None, [f"{key}={inline(value)}" for key, value in values.items()]).values == values


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789.:-+_eExnoyNftrul~", max_size=6))
def test_every_text_is_read_back(text: str) -> None:
    assert parse(dump({"a": text})) == {"a": text} == yaml.safe_load(dump({"a": text}))


def words_of(hint: Any) -> Iterator[str | bool]:
    """Words, and switches, that an option with this annotation takes."""
    if isinstance(hint, Hashable) and hint in PARTS:
        yield from (name for name in PARTS[hint])
    elif get_origin(hint) is Literal:
        yield from (word for word in get_args(hint) if isinstance(word, str))
    elif hint is bool:
        yield from (True, False)
    else:
        for part in get_args(hint):
            yield from words_of(part)


def every_option() -> Iterator[tuple[str, Any, str | bool]]:
    """Each option of a configuration that takes a word or is a switch, with each of these."""
    parts = {part for names in PARTS.values() for part in names.values() if isinstance(part, type)}
    makes = {
        *parts,
        *PARTS[Objective].values(),
        Training,
        Evaluation,
        MiningAgain,
        Labels,
        Temperature,
        History,
        Lora,
    }
    for make in sorted(makes, key=lambda make: make.__name__):
        for name, hint in hints_of(make).items():
            for word in words_of(hint):
                yield f"{make.__name__}.{name}", hint, word


OPTIONS = list(every_option())


def test_the_words_of_every_option_stay_words_and_every_switch_can_be_said_in_four_ways(
    tmp_path: Path,
) -> None:
    assert len({name for name, _, _ in OPTIONS}) > 60 and ("Training.mixed_precision", "no") in {
        o[::2] for o in OPTIONS
    }
    for name, hint, word in OPTIONS:
        said = {True: ["true", "yes", "on", "True"], False: ["false", "no", "off", "False"]}.get(
            word, [word]
        )
        for text in said:
            (tmp_path / "c.yaml").write_text(f"a:\n  {text}: {text}\n  list: [{text}]\n")
            from_file, from_override = (
                load(tmp_path / "c.yaml").values,
                load(None, [f"a={text}"]).values,
            )
            if isinstance(word, str):
                assert from_file == {"a": {word: word, "list": [word]}} and from_override == {
                    "a": word
                }, name
            else:
                builder = Builder(Options())
                assert builder.value(hint, from_override["a"], name) is word
                assert builder.value(hint, from_file["a"]["list"][0], name) is word


@pytest.mark.parametrize("word", ["no", "bf16"])
def test_a_documented_default_can_be_given(tmp_path: Path, word: str) -> None:
    (tmp_path / "c.yaml").write_text(f"train:\n  mixed_precision: {word}\n  fsdp: off\n")
    assert build(load(tmp_path / "c.yaml")).train.mixed_precision == word
    assert (
        build(load(None, [f"train.mixed_precision={word}", "train.fsdp=no"])).train.mixed_precision
        == word
    )


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60), st.lists(st.text(max_size=30), max_size=2))
def test_any_content_gives_options_or_a_config_error(
    tmp_path_factory, content: str | bytes, overrides: list[str]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    )
    try:
        options = load(file, overrides)
    except ConfigError:
        return
    assert isinstance(options.values, dict)


def test_a_table_and_a_folder_are_data(tmp_path: Path) -> None:
    assert load(tmp_path).values == {"data": {"path": str(tmp_path)}}
    options = load(tmp_path / "pairs.csv", ["data.query=asked"])
    assert options.values == {"data": {"path": str(tmp_path / "pairs.csv"), "query": "asked"}}
    assert options.place("data.path") == "command line"


def test_data_that_are_given_twice_are_refused(tmp_path: Path) -> None:
    """As is a word that was to be an option."""
    for path in ("pairs.csv", "train.1"):
        with pytest.raises(
            ConfigError,
            match=rf"the data are given twice, as .*{path} and by data.path=other.csv: give one",
        ):
            load(tmp_path / path if path == "pairs.csv" else Path(path), ["data.path=other.csv"])
    (tmp_path / "config.yaml").write_text("data: {path: pairs.csv}")
    assert load(tmp_path / "config.yaml", ["data.path=other.csv"]).values["data"] == {
        "path": "other.csv"
    }
