"""Examples in the documentation run, and print what it says they print."""

import importlib.util
import inspect
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import yaml

import tempera
from tempera.options.yaml_options import dump
from tempera.recommend.read.division import GlobalTime
from tempera.recommend.read.timeline import Timeline

DOCS = Path(__file__).parents[1] / "docs"


def test_the_diagnosis_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "objective.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(example, "objective.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    for line in printed:
        assert f"    {line}\n" in page


GENERATED_ANCHORS = {"options.md", "api.md"}  # mkdocs makes some of their anchors
LONG = {"options.md", "study.md", "map.md", "licences.md"}  # generated
PAGES = (
    "calibrate",
    "choose-items",
    "encoded-corpus",
    "evaluate-recommenders",
    "evaluation",
    "explain",
    "index",
    "losses",
    "new-events",
    "python",
    "recommend",
    "results/temperature",
    "temperature",
)
SHORTER = {
    '"0.005:1:log:20"': '"0.05:0.1:log:2"',
    "seeds=3": "seeds=1",
    "workers=8": "workers=1",
}  # a sweep of two runs instead of sixty


@pytest.fixture(scope="module")
def shared_folder(
    pairs_file: Path, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the examples of the pages read, in small: runs, pairs, a BEIR folder, configurations."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("first", "second", "t0.02"):
        shutil.copytree(tiny_run, folder / "runs" / name)
    shutil.copy(pairs_file, folder / "pairs.jsonl")
    words = [a + b for a in ("ka", "lo", "mi", "nu") for b in ("ban", "cel", "dor", "fin", "gar")]
    rows = [
        {"query": f"how to {a} a {b}", "doc": f"first {a} and then the {b}"}
        for a in words
        for b in words
    ]
    (folder / "faq.csv").write_text(
        "asked,reply\n" + "".join(f"{r['query']},{r['doc']}\n" for r in rows)
    )
    (faq,) = re.findall(
        r"```yaml\n(data: .*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.S
    )
    (folder / "faq.yaml").write_text(faq.replace("faq.csv", str(folder / "faq.csv")))
    (folder / "config.yaml").write_text(
        dump(yaml.safe_load((tiny_run / "config.yaml").read_text()))
    )
    shard = folder / "corpus" / "texts.jsonl"
    shard.parent.mkdir()
    shard.write_text(
        "".join(json.dumps({"id": i, "text": r["doc"]}) + "\n" for i, r in enumerate(rows))
    )
    beir = folder / "data" / "scifact"
    (beir / "qrels").mkdir(parents=True)
    texts = {
        "corpus": [{"_id": str(i), "title": "", "text": r["doc"]} for i, r in enumerate(rows[:50])]
    }
    texts["queries"] = [{"_id": str(i), "text": row["query"]} for i, row in enumerate(rows[:20])]
    for name, lines in texts.items():
        (beir / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    grades = "".join(f"{i}\t{i}\t1\n" for i in range(20))
    (beir / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{grades}")
    draw = random.Random(0)
    events = [
        {"user": u, "item": i, "time": t}
        for u in range(30, 60)
        for t, i in enumerate([50, 181, *draw.sample(range(50), 7)])
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    later = "".join(f"{u},{draw.randrange(50)},20\n" for u in range(30, 60))
    (folder / "next_month.csv").write_text(f"user,item,time\n{later}")
    (folder / "today.csv").write_text("user,item,time\n42,3,30\n99,181,31\n")
    (folder / "stock.csv").write_text("item\n50\n181\n7\n")
    years = [{"item": item, "year": 1950 + item} for item in (*range(51), 181)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in years))
    tempera.train(
        {
            "data": {
                "source": "interactions",
                "path": str(folder / "events.jsonl"),
                "items": str(folder / "items.jsonl"),
            },
            "tower": {"kind": "features", "dimensions": 8},
            "train": {"batch_size": 32, "max_steps": 2},
        },
        output=folder / "runs" / "movielens",
    )
    return folder


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run(
    name: str, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.chdir(shared_folder)
    draw = np.random.default_rng(0)
    users, steps = np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30)
    events = {"users": users, "items": draw.integers(0, 20, 300), "times": 1000 * steps + users}
    asked = len(GlobalTime()(Timeline.of(*events.values())).test["rolling"])
    vectors = {
        name: draw.normal(size=(n, 4)).astype(np.float32)
        for name, n in (("query_vectors", asked), ("item_vectors", 20))
    }
    around = {"tempera": tempera, **events, **vectors}
    examples = re.findall(
        r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(encoding="utf-8"), re.S
    )
    assert examples
    for example in examples:
        for long, short in SHORTER.items():
            example = example.replace(long, short)
        exec(compile(example, f"{name}.md", "exec"), around)


def test_every_page_with_python_is_run() -> None:
    pages = {
        str(page.relative_to(DOCS).with_suffix(""))
        for page in DOCS.rglob("*.md")
        if "```python" in page.read_text(encoding="utf-8")
    }
    elsewhere = {"engines"}  # tests/exports/test_engines.py
    assert pages == {*PAGES, "objective", *elsewhere}


def test_every_preset_is_on_the_page() -> None:
    from tempera.core.presets import PRESETS

    page = (DOCS / "objective.md").read_text(encoding="utf-8")
    for preset in PRESETS:
        assert f"`{preset.__name__}`" in page


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """What makes pages when the site is built."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("tempera_pages", DOCS / "_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(page: str) -> dict[str, dict[str, str]]:
    """By heading: what the page says of each option."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif row := re.match(r"\| `(\w+)` \|.*\| (.*) \|$", line):
            found.setdefault(heading, {})[row[1]] = row[2]
    return found


def test_every_option_is_on_its_page_and_explained(pages: ModuleType) -> None:
    from tempera.options import names

    assert pages.PAGE.read_text(encoding="utf-8") == pages.options(), (
        "python docs/_pages.py writes the page again"
    )
    found = tables(pages.options())
    sections = dict(pages.PLAIN)
    for title, kind in {
        **pages.KINDS,
        "data": names.DataOptions,
        "tower": names.TowerOptions,
    }.items():
        sections |= {
            f"{title}: {name}": make
            for name, make in names.PARTS[kind].items()
            if isinstance(make, type)
        }
    sections |= {make.__name__.lower(): make for make in pages.STATES}
    sections["objective"] = pages.Objective
    for heading, make in sections.items():
        options = set(names.hints_of(make)) - ({"objective"} if make is pages.Matryoshka else set())
        assert options <= set(found.get(heading, {})), heading
        assert all(found[heading][option] for option in options), heading
    assert len(sections) >= 40


def test_every_section_and_every_kind_of_part_is_on_the_page(pages: ModuleType) -> None:
    from tempera.options import build, names

    page = pages.options()
    for section in build.build(build.Options()).resolved:
        assert f"\n## {section}\n" in page
    named = [
        *pages.KINDS.values(),
        pages.Feature,
        pages.Source,  # of a mixture
        *(kind for kind, _, _ in names.SECTIONS.values()),
    ]
    assert all(kind in named for kind in names.PARTS)
    for preset in names.PARTS[names.Objective]:
        assert f"| `{preset}` |" in page


def test_defaults_and_bounds_are_those_of_the_signature(pages: ModuleType) -> None:
    page = pages.options()
    assert "| `batch_size` | whole number above 1 or `auto` | `auto` |" in page
    assert "| `dropout` | number at least 0, below 1 | `0.1` |" in page
    assert "| `temperature` | number or [temperature](#temperature) | `0.05` |" in page
    assert "| `path` | text | required |" in page
    assert (
        "| `report_to` | list of `tensorboard` or `wandb` or `mlflow` or `trackio` | `[]` |" in page
    )


def test_a_notebook_becomes_a_page(pages: ModuleType) -> None:
    page = pages.notebook(pages.NOTEBOOKS / "text.ipynb")
    assert page.startswith("# Search in texts\n")
    assert page.count("```python\n") == 5 and page.count("```") == 10


def script(name: str) -> ModuleType:
    """A script of docs/, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(f"tempera{name}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_pages_of_results_are_what_the_records_say() -> None:
    results = script("_results")
    for path, text in results.written().items():
        assert path.read_text(encoding="utf-8") == text, f"python docs/_results.py writes {path}"
    aims = [
        aim
        for path in results.RECORDS.glob("*.json")
        for aim in results.aims_of(results.record_of(path.stem))
    ]
    outcomes = {aim.outcome for aim in aims}
    assert len(aims) > 200 and {"met", "missed"} <= outcomes


def test_a_record_is_shown_with_its_aims_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = script("_results")
    record = {
        "date": "2026-01-01",
        "commit": "abc",
        "machine": "a machine",
        "versions": {"python": "3.11"},
        "aims": ["MISSED  time: 2.5 (aim <= 2)", "met     share: 1 (aim >= 0.5)"],
        "figures": {
            "a|b": {"score": 0.12345, "gain": {"mean": 0.1, "low": -0.2, "high": 0.4}},
            "c": {"score": 2, "gain": {"mean": 0.0, "low": 0.0, "high": 0.0}},
        },
    }
    monkeypatch.setattr(results, "RECORDS", tmp_path)
    (tmp_path / "small.json").write_text(json.dumps(record))
    page = results.filled("<!-- record: small one command -->\nold\n<!-- /record -->\n")
    assert "(one command): 2026-01-01, commit abc, a machine; python 3.11." in page
    assert "| time | at most 2 | 2.5 | **missed** |\n| share | at least 0.5 | 1 | met |" in page
    assert "| a\\|b | 0.1235 | +0.100 [-0.200, +0.400] |" in page and "old" not in page
    assert results.filled(page) == page


def test_links_between_pages_lead_to_pages_and_headings() -> None:
    paths = sorted(DOCS.rglob("*.md"))
    headings = {}
    for path in paths:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        titles = re.findall(r"^#+ (.*)$", text, re.M)
        headings[path.resolve()] = {
            re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles
        } | set(re.findall(r'<a id="([\w-]+)">', text))
    for path in paths:
        if path.name in GENERATED_ANCHORS:
            continue
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?(?:#([\w.-]+))?\)", text):
            to = (path.parent / target if target else path).resolve()
            if "notebooks" in to.parts:
                continue
            assert to.is_file(), f"{path.name}: {target}"
            if anchor and to.name not in GENERATED_ANCHORS:
                assert anchor in headings[to], f"{path.name}: {target}#{anchor}"


def test_guides_are_short() -> None:
    for path in DOCS.glob("*.md"):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        if title.startswith("# Reference: ") or path.name in LONG:
            continue
        assert len(text.split()) <= 900, f"{path.name} has {len(text.split())} words"


def test_links_to_elsewhere_are_well_formed() -> None:
    for path in (*DOCS.glob("*.md"), *DOCS.glob("results/*.md"), DOCS.parent / "README.md"):
        for link in re.findall(
            r"\]\((https?:[^)]*)\)|<(https?:[^>]*)>", path.read_text(encoding="utf-8")
        ):
            url = urlsplit("".join(link))
            assert re.fullmatch(r"[\w.-]+\.[a-z]{2,}", url.netloc) and " " not in url.path, (
                f"{path.name}: {link}"
            )


@pytest.mark.long
def test_the_site_is_built_and_loads_nothing_from_elsewhere(
    pages: ModuleType, tmp_path: Path
) -> None:
    """All links and anchors hold, else it would not be built; without a network it looks the
    same."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    built = list(tmp_path.rglob("*.html"))
    assert {"index.html", "options.html", "concepts.html", "api.html"} <= {
        path.name for path in built
    }
    loads = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
    )
    assert loads.search('<link rel="stylesheet" href="https://fonts.example/a.css">')
    for path in built:
        assert not loads.findall(path.read_text(encoding="utf-8")), path
    for path in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", path.read_text(encoding="utf-8")), path
    assert not list(tmp_path.rglob("*.py"))
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert 'class="gp"' in api and "<blockquote>" not in api, "examples are code"


@pytest.mark.parametrize("name", [name for name in tempera.__all__ if not name.startswith("_")])
def test_every_public_name_has_an_example_and_a_place_on_the_api_page(name: str) -> None:
    public = getattr(tempera, name)
    assert ">>> " in inspect.getdoc(public), "an example, which pytest runs"
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    home = getattr(public, "__module__", getattr(public, "__name__", ""))  # `pools` is a module
    assert {home, f"{home}.{name}"} & set(re.findall(r"^::: (\S+)$", page, re.M))
