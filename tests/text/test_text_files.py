"""Pairs from texts: headings and first sentences with what follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempera.errors import DataError
from tempera.text.read.html_text import markdown
from tempera.text.read.text_files import (
    HEADING_ASKS,
    Section,
    TextFiles,
    pair_of,
    parts_of,
    sections,
)

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
    "block",
    [
        "```inline``` of a line",
        "~~~\n```\n# no heading\n~~~",
        "````md\n```\n# no heading\n````",
        "```sh\n```x\n# no\n```  ",
    ],
)
def test_a_block_ends_with_the_sign_that_opened_it(block: str) -> None:
    assert [section.heading for section in sections(f"# One\n{block}\n# Two")] == [
        "",
        "One",
        "One: Two",
    ]


def test_signs_at_the_end_of_a_heading_stand_behind_a_space() -> None:
    headings = [
        section.heading for section in sections("# C#\n\na\n## F# ##\nb\n## ##\nc\n# Tea#\t#\nd")
    ]
    assert headings == ["", "C#", "C#: F#", "C#", "C#: Tea#"]


def test_a_text_between_two_rules_is_no_front_matter() -> None:
    assert [
        tuple(each) for each in sections("---\n\nBefore. It all.\n\n---\n# Tea\nDrink it.")
    ] == [
        ("", "---\n\nBefore. It all.\n\n---", 1),
        ("Tea", "Drink it.", 6),
    ]
    assert [
        each.heading for each in sections("---\n# of a page\n\ntitle: Tea\n---\nDrink it.")
    ] == ["Tea"]


def test_front_matter_and_comments_are_no_text() -> None:
    text = '---\ntitle: "Tea policy"\ndate: 2024-01-01\n---\nFive <!-- not\nfour --> days.\n# Tea policy\n## When\nNow.\n'
    assert [tuple(each) for each in sections(text)] == [
        ("Tea policy", "Five \n days.", 1),
        ("Tea policy", "", 7),
        ("Tea policy: When", "Now.", 8),
    ]
    assert [each.text for each in sections("---\nnot closed")] == ["---\nnot closed"]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("One sentence only.", []),
        ("", []),
        ("One. Two\nlines.", [("One.", "Two\nlines.")]),
        ('"Is it?" Yes. It is.', [('"Is it?"', "Yes. It is.")]),
        ("A title\n\nIts text", [("A title", "Its text")]),
        (
            "Long one. Its rest.\n\nThe next. Its rest.",
            [("Long one.", "Its rest."), ("The next.", "Its rest.")],
        ),
        (
            "First line. Its rest.\nSecond line. Its rest.",
            [("First line.", "Its rest."), ("Second line.", "Its rest.")],
        ),
    ],
)
def test_else_the_first_sentence_or_a_line_of_its_own(
    text: str, pairs: list[tuple[str, str]]
) -> None:
    made = [pair_of(*part) for part in parts_of(Section("", text, 1), 30)]
    assert [pair for pair in made if pair] == pairs


def test_long_paragraphs_are_divided_between_lines_then_sentences_then_words() -> None:
    text = (
        "One line\nand two\nand three, long\n\nShort.\n\nA sentence. Another one, and it goes on and on.\n"
        + "x" * 45
    )
    assert [part for _, part in parts_of(Section("", text, 1), 20)] == [
        *(
            "One line\nand two",
            "and three, long",
            "Short.",
            "A sentence.",
            "Another one, and it",
            "goes on and on.",
        ),
        *("x" * 20, "x" * 20, "x" * 5),
    ]


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(PAGE)
    (tmp_path / "b.TXT").write_text("\ufeffOne. Two.")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe. No.")
    pairs, may_ask = TextFiles(str(tmp_path)).read()
    assert pairs.texts("query") == ["Before.", "Tea", "Tea: Green tea", "One."] and may_ask.all()
    assert pairs.texts("place")[2] == f"{tmp_path}/a.md:11" and pairs.dropped == {
        "files that are not UTF-8": 1
    }
    assert pairs.about == f"{tmp_path} holds 3 text files, of which pairs are made: {HEADING_ASKS}"
    with pytest.raises(
        DataError,
        match=r"holds no text of two sentences.*, and 1 file that is not UTF-8: save them as UTF-8",
    ):
        TextFiles(str(tmp_path / "c.txt")).read()
    with pytest.raises(DataError, match="no such file"):
        TextFiles(str(tmp_path / "none")).read()


def test_files_that_are_not_read_are_counted_with_their_endings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(PAGE)
    for name in ("b.rst", "c.RST", "d.pdf", "LICENSE", ".hidden.png"):
        (tmp_path / name).write_text("x")
    pairs, _ = TextFiles(str(tmp_path)).read()
    assert pairs.dropped == {"files with other endings (.rst, .pdf, none)": 4}
    for i in range(4):
        (tmp_path / f"e.x{i}").write_text("x")
    assert ", ...)" in next(iter(TextFiles(str(tmp_path)).read()[0].dropped))
    assert not TextFiles(str(tmp_path / "a.md")).read()[0].dropped


def test_a_long_text_is_divided_behind_the_quotes_of_a_sentence() -> None:
    parts = parts_of(Section("", 'He said "Wait." Then left now.', 1), 20)
    assert [text for _, text in parts] == ['He said "Wait."', "Then left now."]


def test_sentences_of_scripts_without_spaces_and_with_other_full_stops() -> None:
    assert pair_of("", "今天很好。「去公园吗？」他说。 End. 好！") == (
        "今天很好。",
        "「去公园吗？」他说。 End. 好！",
    )
    assert pair_of("", "他说「好。」走了。") == ("他说「好。」", "走了。")
    assert pair_of("", "今天很好。") is None and pair_of("", "真的吗？！") is None
    assert pair_of("", "यह पहला है। यह दूसरा है।") == ("यह पहला है।", "यह दूसरा है।")
    parts = parts_of(Section("", "今天很好。「去公园吗？！」他说。 End. 好！", 1), 9)
    assert [text for _, text in parts] == ["今天很好。", "「去公园吗？！」", "他说。 End.", "好！"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>An array[<![b] > 2.</p><p>It is.</p>", "An array[ 2.\n\nIt is."),
        ("<p>Five <![ six.</p><p>Seven.</p>", "Five\n\nSeven."),
        ("<![FOO[x]]> One.", "One."),
        ("One. <![if gte mso 9]>Two.<![endif]>", "One. Two."),
    ],
)
def test_a_section_that_html_does_not_know_is_a_comment(page: str, text: str) -> None:
    assert markdown(page) == text


def test_a_section_that_does_not_end_is_text_or_a_comment() -> None:
    assert markdown("One. <![") in ("One. <![", "One.")  # Python before 3.14, and since


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("One.<br/>Two.<br>Three.<br /><br />Four.", "One.\nTwo.\nThree.\n\nFour."),
        (
            "<h1>A</h1><pre><code>a = <b>1</b>\n  # b\n</code></pre> C\nd",
            "# A\n\n```\na = 1\n  # b\n\n```\n\nC d",
        ),
        ("<title>A</title><pre># b</pre>", "# A\n\n```\n# b\n```"),
        ("<pre>a\nb<h2>C</h2>d\ne", "```\na\nb\n```\n\n## C\n\nd e"),  # that nothing closes
        ("<h1></h1><p>One", "One"),
        ("<ul>\n<li>One</li>\n<li>Two</li>\n</ul>\nAfter.", "One\nTwo\n\nAfter."),
        (
            "<table><tr><th>One</th><td>two</td></tr><tr><td>three</td></tr></table>",
            "One two\nthree",
        ),
        ("<dl><dt>One</dt><dd>two</dd></dl>", "One\ntwo"),
    ],
)
def test_breaks_and_items_begin_one_line(page: str, text: str) -> None:
    assert markdown(page) == text
