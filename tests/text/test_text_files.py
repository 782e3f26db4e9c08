"""Pairs from texts: headings and first sentences with what follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempera.errors import DataError
from tempera.text.text_files import Section, TextFiles, pairs_of, sections

PAGE = """Before. It all.

# Tea

Drink it.

```sh
# no heading
```

## Green tea ##

Steep it.
"""


def test_a_heading_asks_for_what_stands_below_it() -> None:
    assert list(sections(PAGE)) == [
        Section("", "Before. It all.", 1),
        Section("Tea", "Drink it.\n\n```sh\n# no heading\n```", 3),
        Section("Tea: Green tea", "Steep it.", 11),
    ]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("One sentence only.", []),
        ("", []),
        ("One. Two\nlines.", [("One.", "Two\nlines.")]),
        ('"Is it?" Yes. It is.', [('"Is it?"', "Yes. It is.")]),
        ("A title\n\nIts text", [("A title", "Its text")]),
        ("Long one. Its rest.\n\nThe next. Its rest.", [("Long one.", "Its rest."), ("The next.", "Its rest.")]),
        (
            "First line. Its rest.\nSecond line. Its rest.",
            [("First line.", "Its rest."), ("Second line.", "Its rest.")],
        ),
    ],
)
def test_else_the_first_sentence_or_a_line_of_its_own(text: str, pairs: list[tuple[str, str]]) -> None:
    assert list(pairs_of(Section("", text, 1), 30)) == pairs


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(PAGE)
    (tmp_path / "b.TXT").write_text("\ufeffOne. Two.")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe. No.")
    pairs, may_ask = TextFiles(str(tmp_path)).read()
    assert pairs.texts("query") == ["Before.", "Tea", "Tea: Green tea", "One."] and may_ask.all()
    assert pairs.texts("place")[2] == f"{tmp_path}/a.md:11" and pairs.dropped == {"files that are not UTF-8": 1}
    assert pairs.about == f"{tmp_path} holds 3 text files: query = heading or first sentence, doc = what follows it"
    with pytest.raises(DataError, match="holds no text of two sentences"):
        TextFiles(str(tmp_path / "c.txt")).read()
    with pytest.raises(DataError, match="no such file"):
        TextFiles(str(tmp_path / "none")).read()
