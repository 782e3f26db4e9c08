"""Write the generated parts of docs/results/ from the records of the benchmarks: `python
docs/_results.py`.

A page of results holds marks such as

    <!-- record: recipe `python bench/recipe.py`, eight sets -->
    <!-- /record -->

Between both marks this command writes what `bench/results/recipe.json` holds: date, commit,
machine, versions, the aims and the figures. `aims.md` and `index.md` are generated as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGES = Path(__file__).with_name("results")
RECORDS = Path(__file__).parents[1] / "bench" / "results"
GENERATED = ("aims.md", "index.md")
MOST_CELLS = 500  # larger tables are left to the record itself
MOST_COLUMNS = 12
LONGEST_LIST = 7
_MARK = re.compile(r"(<!-- record: ([\w-]+) ?(.*?) -->\n).*?(<!-- /record -->)", re.S)
_AIM = re.compile(r"(met|missed|MISSED)?\s*(.*): (.+) \(aim ([<>]=) (.+)\)")
_INTERVAL = {"mean", "low", "high"}


@dataclass(frozen=True)
class RecordedAim:
    """An aim of a benchmark with its outcome, read from a line of the record."""

    name: str
    measured: str
    bound: str
    outcome: str

    @classmethod
    def of(cls, line: str) -> RecordedAim:
        """Return the aim that `bench/_harness.py` has written as this line."""
        match = _AIM.fullmatch(line)
        if match is None:
            raise ValueError(f"no aim of a benchmark: {line}")
        outcome, name, measured, sign, bound = match.groups()
        limit = "at least" if sign == ">=" else "at most"
        return cls(name, measured, f"{limit} {bound}", (outcome or "not judged alone").lower())

    @property
    def cells(self) -> list[str]:
        """Return the cells of the aim's row: name, bound, measured figure and outcome."""
        outcome = "**missed**" if self.outcome == "missed" else self.outcome
        return [in_cell(self.name), self.bound, self.measured, outcome]


def record_of(name: str) -> dict[str, Any]:
    """Return the record of a benchmark by the name of its file."""
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def aims_of(record: Mapping[str, Any]) -> list[RecordedAim]:
    """Return the aims of a record."""
    return [RecordedAim.of(line) for line in record.get("aims", ())]


def filled(page: str) -> str:
    """Return the page with the blocks of its records written again."""

    def block(match: re.Match[str]) -> str:
        begin, name, caption, end = match.groups()
        return f"{begin}{section(name, caption)}\n{end}"

    return _MARK.sub(block, page)


def section(name: str, caption: str) -> str:
    """Return the block of one record: origin, aims and figures."""
    record = record_of(name)
    lines = ["", origin(name, caption, record), ""]
    aims = aims_of(record)
    if aims:
        rows = [aim.cells for aim in aims]
        lines += [*table(["aim", "bound", "measured", "outcome"], rows), ""]
    figures = record.get("figures", record)
    shown = list(tables(figures))
    cells = sum(line.count("|") for line in shown)
    if 0 < cells <= MOST_CELLS:
        summary = f"<summary>Every figure of <code>{name}.json</code></summary>"
        lines += ['<details markdown="1">', summary, "", *shown, "", "</details>", ""]
    return "\n".join(lines)


def origin(name: str, caption: str, record: Mapping[str, Any]) -> str:
    """Return the sentence that says when, where and by which command a record was measured."""
    path = f"`bench/results/{name}.json`"
    text = f"**Record** {path}" + (f" ({caption})" if caption else "")
    if "date" in record:
        text += f": {record['date']}, commit {record['commit']}, {record['machine']}"
    versions = record.get("versions", {})
    if versions:
        text += "; " + ", ".join(f"{package} {number}" for package, number in versions.items())
    return f"{text}."


def tables(figures: Any, title: str = "") -> Iterator[str]:
    """Yield the lines of the tables of figures, which may be nested."""
    if isinstance(figures, list):
        figures = {str(number): each for number, each in enumerate(figures, 1)}
    if not isinstance(figures, dict):
        return
    rows = {}
    for name, value in figures.items():
        rows[name] = dict(leaves(value))
    if is_of_one_kind(list(rows.values())):
        yield from titled(title, grid(rows))
        return
    plain = []
    for name, value in figures.items():
        text = leaf(value)
        if text is not None:
            plain.append([in_cell(name), text])
    if plain:
        yield from titled(title, table(["figure", "value"], plain))
    for name, value in figures.items():
        if leaf(value) is None:
            yield from tables(value, f"{title}: {name}" if title else name)


def is_of_one_kind(rows: Sequence[Mapping[str, str]]) -> bool:
    """Return True if the rows have at least half of their columns in common."""
    columns = [set(row) for row in rows if set(row) - {""}]
    if len(columns) < len(rows) or not columns:
        return False
    return 2 * len(set.intersection(*columns)) >= len(set.union(*columns))


def grid(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a table with a row for each name, or with a column for each where that is narrower."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if len(columns) <= MOST_COLUMNS or len(rows) > MOST_COLUMNS:
        lines = [[in_cell(name), *(row.get(c, "") for c in columns)] for name, row in rows.items()]
        return table(["", *map(in_cell, columns)], lines)
    lines = [[in_cell(c), *(row.get(c, "") for row in rows.values())] for c in columns]
    return table(["", *map(in_cell, rows)], lines)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every figure below a value; long lists are left out."""
    text = leaf(value)
    if text is not None:
        yield path, text
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{path}: {name}" if path else str(name))


def leaf(value: Any) -> str | None:
    """Return a figure, an interval or a short list as text, and None for anything else."""
    if isinstance(value, dict):
        if set(value) != _INTERVAL:
            return None
        return f"{value['mean']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"
    if isinstance(value, list):
        texts = [leaf(each) for each in value]
        if len(texts) > LONGEST_LIST or None in texts or any(isinstance(v, dict) for v in value):
            return None
        return ", ".join(text for text in texts if text)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return in_cell(str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def titled(title: str, lines: Sequence[str]) -> list[str]:
    """Return the lines below their title, with an empty line behind."""
    return [*([f"{title}:", ""] if title else []), *lines, ""]


def in_cell(text: str) -> str:
    """Return a text as it may stand in a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def written_pages() -> list[Path]:
    """Return the pages of results that are not generated as a whole, by name."""
    return [path for path in sorted(PAGES.glob("*.md")) if path.name not in GENERATED]


def ledger() -> str:
    """Return the page of all aims of all records."""
    places: dict[str, tuple[Path, str]] = {}
    for path in written_pages():
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"([\w-]+)\.json\b", text):
            places.setdefault(name, (path, ""))
        for _, name, caption, _ in _MARK.findall(text):
            places[name] = (path, caption)
    rows = []
    met = missed = 0
    for path in sorted(RECORDS.glob("*.json")):
        page, caption = places.get(path.stem, (None, ""))
        link = f"[{path.stem}]({page.name})" if page else path.stem
        for aim in aims_of(record_of(path.stem)):
            met += aim.outcome == "met"
            missed += aim.outcome == "missed"
            name, bound, measured, outcome = aim.cells
            rows.append([link, caption, name, bound, measured, outcome])
    header = ["record", "measured by", "aim", "bound", "measured", "outcome"]
    lines = [
        "# Every aim of every benchmark",
        "",
        "Every benchmark states its aims and fails if it misses one. The records lie in `bench/results/`,",
        "and `python docs/_results.py` writes this page from them. Ratios alternate both programs on one",
        f"machine. {met} aims are met and {missed} are missed.",
        "",
        *table(header, rows),
    ]
    return "\n".join(lines) + "\n"


HOW_TO_READ = """\
## How to read them

- **nDCG@10** says from 0 to 1 how high the right documents are among the first ten; **hit rate@10** is the share
  of questions whose answer is among the first ten. **BM25** is a classic score of shared words, without training.
- **Differences** stand with their 95 % interval, paired by query. A model is **shown better** if the interval lies
  above 0, and **shown worse** if it lies below. Anything else may be chance.
- **Seeds** repeat a training with other first weights and another order of rows. Intervals by query of one
  seed do not hold the chance of a training.
- **CPU seconds** are the time of processors, on one thread unless something else is said. A busy machine needs more.
- **met** and **missed** compare a figure with the aim that the benchmark states.

| set | pairs of |
|---|---|
| nl2bash | a description of a task and the shell command for it (NL2Bash) |
| medquad | a medical question and its long answer (MedQuAD) |
| captions | two captions of one picture (Flickr30k) |
| parasci | two sentences of scientific papers that say the same (ParaSCI) |
| nli | a sentence and another one that follows from it |
| duplicates | two questions that mean the same (Quora) |
| scifact titles, cacm titles | the title and the abstract of a paper |
| standard library, `make demo` | a docstring and its Python code |
| biology, doctors | a question and its answer |
| perl, elisp, concode | a heading or a comment, and the section or the code below it |
| debian, commits, mail, replies, rfc | a short line (synopsis, subject, title) or a mail, and the text that belongs to it |
"""


def index() -> str:
    """Return the page that lists the pages of results with their first sentences."""
    lines = [
        "# Results",
        "",
        "These pages hold what was measured: every table, and what was tried and gained nothing. The",
        "[guides](../index.md) say what to do and link here for the reason. `python docs/_results.py`",
        "writes the figures of every record from `bench/results/`.",
        "",
        "- [Every aim of every benchmark](aims.md): what was aimed at, what was measured, met or missed.",
    ]
    left_out = []
    for path in written_pages():
        if path.name.startswith("left-out-"):
            left_out.append(line_of(path))
        else:
            lines.append(line_of(path))
    study = "how the best temperature depends on data, towers and batches."
    lines.append(f"- [Which temperature is best? A study](../study.md): {study}")
    if left_out:
        lines += ["", "## Tried, and left out", "", *left_out]
    return "\n".join([*lines, "", HOW_TO_READ])


def line_of(path: Path) -> str:
    """Return the line of a page in the index: its title and the first sentence of its text."""
    title, _, text = path.read_text(encoding="utf-8").partition("\n")
    paragraphs = [each for each in text.strip().split("\n\n") if not each.startswith("#")]
    paragraph = re.sub(r"^\*\*[^*]+\*\* ", "", paragraphs[0].replace("\n", " "))
    sentence = re.split(r"(?<=[.:?])\s", paragraph)[0].rstrip(":.")
    return f"- [{title.lstrip('# ')}]({path.name}): {sentence}."


def written() -> dict[Path, str]:
    """Return the text of every page of results, as this command writes it."""
    texts = {}
    for path in written_pages():
        texts[path] = filled(path.read_text(encoding="utf-8"))
    texts[PAGES / "aims.md"] = ledger()
    texts[PAGES / "index.md"] = index()
    return texts


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
