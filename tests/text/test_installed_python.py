"""Pairs from Python files: what is found, what is left out, and that nothing is ever run."""

from __future__ import annotations

import gc
import io
import os
import signal
import stat
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tempera.errors import DataError
from tempera.text.read import installed_python, python_rows
from tempera.text.read.installed_python import InstalledPython, installed_roots, python_files
from tempera.text.read.pairs import Pairs
from tempera.text.read.python_rows import File
from tempera.text.read.python_source import PythonSource


def found(source: str) -> list[tuple[str, str, str, int]]:
    return list(PythonSource(textwrap.dedent(source)).pairs())


def one(source: str) -> tuple[str, str, str, int]:
    """The only definition of a source."""
    definitions = found(source)
    assert len(definitions) == 1
    return definitions[0]


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert path.stat().st_size == len(path.read_bytes())
    return root


def parsed_here(share: Sequence[File], kinds: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield what a worker process sends, without its process, which takes longer to start than to
    parse."""
    names, rows = "\0".join(part for file in share for part in file), io.BytesIO()
    with warnings.catch_warnings():
        python_rows.work(io.BytesIO(names.encode("utf-8", "surrogateescape")), rows, kinds, most)
    gc.enable()
    yield from pa.ipc.open_stream(rows.getvalue())


def read(*roots: Path, workers: int = 0, max_characters: int = 4000) -> tuple[Pairs, list[bool]]:
    """Read pairs in worker processes, or in this one if there are to be none."""
    with pytest.MonkeyPatch.context() as patch:
        if not workers:
            patch.setattr(installed_python, "_worker", parsed_here)
        pairs, asked = InstalledPython(tuple(map(str, roots)), workers or 1, max_characters).read()
    assert len(pairs) == len(asked)
    return pairs, asked.tolist()


def names(pairs: Pairs) -> list[str]:
    return pairs.texts("name")


# What is found in one source.


def test_nested_definitions_stand_alone_and_lose_their_docstrings_in_the_outer_ones() -> None:
    source = '''
    class Date:
        """A day.

        Counted from 1.
        """

        zone = "UTC"

        def parse(self):
            "Read a day."
            def digits():
                """Only digits."""
                return 1
            return digits

        async def wait(self):
            \'\'\'Wait for it.\'\'\'
            class Clock:
                r"""Ticks."""
                rate = 1
    '''
    assert found(source) == [
        (
            "Date",
            "A day.",
            'class Date:\n\n    zone = "UTC"\n\n    def parse(self):\n        def digits():\n            return 1\n'
            "        return digits\n\n    async def wait(self):\n        class Clock:\n            rate = 1",
            2,
        ),
        (
            "Date.parse",
            "Read a day.",
            "def parse(self):\n    def digits():\n        return 1\n    return digits",
            10,
        ),
        ("Date.parse.digits", "Only digits.", "def digits():\n    return 1", 12),
        (
            "Date.wait",
            "Wait for it.",
            "async def wait(self):\n    class Clock:\n        rate = 1",
            17,
        ),
        ("Date.wait.Clock", "Ticks.", "class Clock:\n    rate = 1", 19),
    ]


def test_decorators_are_no_part_of_the_code() -> None:
    source = '''
    @first(1)
    @second
    def f(x):
        """Decorated."""
        return x
    '''
    assert one(source) == ("f", "Decorated.", "def f(x):\n    return x", 4)


@pytest.mark.parametrize(
    "around",
    [
        "if x:\n    {}",
        "if x:\n    pass\nelif y:\n    {}",
        "if x:\n    pass\nelse:\n    {}",
        "for i in x:\n    {}",
        "for i in x:\n    pass\nelse:\n    {}",
        "while x:\n    {}",
        "with x:\n    {}",
        "try:\n    {}\nfinally:\n    pass",
        "try:\n    pass\nexcept E:\n    {}",
        "try:\n    pass\nexcept* E:\n    {}",
        "try:\n    pass\nexcept E:\n    pass\nelse:\n    {}",
        "try:\n    pass\nfinally:\n    {}",
        "match x:\n  case 1:\n    {}",
        "async def g():\n  async with x:\n    {}",
    ],
)
def test_definitions_under_any_statement_are_found(around: str) -> None:
    source = around.format('def f():\n        """Inside."""\n        return 1')
    assert [(query, code) for _, query, code, _ in PythonSource(source).pairs()] == [
        ("Inside.", "def f():\n    return 1")
    ]


@pytest.mark.parametrize(
    ("literal", "query"),
    [
        ('"Plain."', "Plain."),
        ("'Plain.'", "Plain."),
        ('r"""Raw \\d."""', "Raw \\d."),
        ('R"Raw \\d."', "Raw \\d."),
        ('u"Größe."', "Größe."),
        ('"Esc\\x61ped."', "Escaped."),
        ('("In " "parts.")', "In parts."),
        (
            '"""\n\n    First line\n      and   second.\n\n    Another paragraph.\n    """',
            "First line and second.",
        ),
        ('"""First.\n    \t\n    Second."""', "First."),
        ('"""Esc\\x61ped."""', "Escaped."),
        ('"""A" quote."""', 'A" quote.'),
        ('"""In """ "parts."', "In parts."),
    ],
)
def test_the_query_is_the_first_paragraph(literal: str, query: str) -> None:
    assert one(f"def f():\n    {literal}\n    return 1\n") == (
        "f",
        query,
        "def f():\n    return 1",
        1,
    )


@pytest.mark.parametrize(
    "literal",
    ['""', '"""   \n  """', 'b"Bytes."', 'f"Format {1}."', '"""Null\0."""', "1", "...", "x = 'no'"],
)
def test_what_is_no_docstring_gives_no_pair(literal: str) -> None:
    assert found(f"def f():\n    {literal}\n    return 1\n") == []


def test_tabs_and_relative_indentation_stay() -> None:
    source = 'class A:\n\tdef f(self):\n\t\t"""Tabs."""\n\t\tif self:\n\t\t\treturn 1\n'
    assert one(source)[2] == "def f(self):\n\tif self:\n\t\treturn 1"
    source = "    def f(a,\n          b):\n        '''Aligned.'''\n        return (a +\n                b)\n"
    assert one(f"class A:\n{source}")[2] == "def f(a,\n      b):\n    return (a +\n            b)"


def test_a_docstring_goes_from_the_line_of_its_definition() -> None:
    source = '''
    class A:
        """Outer."""
        def f(self, größe="ß"): "One line."
        def g(
            self,
        ): """Two
        lines."""
        def h(self):
            return 1
    class B: "Only this."
    '''
    f, g, h = 'def f(self, größe="ß"):', "def g(\n    self,\n):", "def h(self):\n    return 1"
    inside = textwrap.indent(f"{f}\n{g}\n{h}", "    ")
    assert [code for _, _, code, _ in found(source)] == [f"class A:\n{inside}", f, g, "class B:"]


@pytest.mark.parametrize("space", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_only_newlines_end_a_line(space: str) -> None:
    before = f"\f\nx = 1\nname = 'a{space}b'\n" if space != "\f" else "x = 1\n\f\nname = 1\n"
    code = f"def f():\n    return '{space if space != chr(12) else ''}'"
    source = f'{before}{code[:8]}\n    """Text."""{code[8:]}\n'
    assert [(query, code) for _, query, code, _ in PythonSource(source).pairs()] == [
        ("Text.", code)
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_kind_of_newline(newline: str) -> None:
    source = 'x = 1\ndef f():\n    """Text."""\n    return 1\n'.replace("\n", newline)
    assert list(PythonSource(source).pairs()) == [("f", "Text.", "def f():\n    return 1", 2)]


def test_a_long_string_that_is_no_docstring_takes_no_time() -> None:
    """It took a time that doubled with each letter: years for 60."""
    long = "a" * 10_000
    source = f"""
    def f():
        "{long}".format(1)
    def g():
        ("{long}" "{long}", 1)
    def h():
        "H."
        return 1
    """
    assert [row[1] for row in found(source)] == ["H."]


def test_a_bracket_keeps_lines_of_any_indent_in_a_block() -> None:
    block = 'def f():\n    "F."\n    x = {\n1: (2,\n[3]),\n}\n    return x'
    code = block.replace('    "F."\n', "")
    assert [row[2] for row in PythonSource(f"{block}\n\n\nx = f()\n").pairs()] == [code]


def test_blank_lines_of_spaces_are_empty() -> None:
    source = 'class A:\n    def f():\n        "F."\n        x = 1\n   \n\t\n            \n        return x\n'
    assert one(source)[2] == "def f():\n    x = 1\n\n\n\n    return x"


# What is found in folders.

F = 'def f(x):\n    """Double it."""\n    return 2 * x\n'


def test_columns_of_a_pair(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"a/__init__.py": F, "a/b.py": "\n\nclass C:\n    'A class.'\n    x = 1\n", "a/c.txt": F},
    )
    pairs, asked = read(tmp_path)
    assert pairs.table.select(["query", "doc", "name", "place"]).to_pylist() == [
        {
            "query": "Double it.",
            "doc": "def f(x):\n    return 2 * x",
            "name": "a.f",
            "place": f"{tmp_path}/a/__init__.py:1",
        },
        {
            "query": "A class.",
            "doc": "class C:\n    x = 1",
            "name": "a.b.C",
            "place": f"{tmp_path}/a/b.py:3",
        },
    ]
    assert asked == [True, False]  # evaluation asks functions only


def test_files_that_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    bad: dict[str, str | bytes] = {
        "not_utf8.py": F.encode() + b"x = '\xff'\n",
        "cookie.py": "# coding: nonsense\n" + F,
        "no_text_codec.py": "# coding: hex\n" + F,
        "wrong_cookie.py": "# coding: ascii\n" + F + "x = 'é'\n",
        "empty.py": "",
        "good.py": F,
    }
    pairs, _ = read(tree(tmp_path, bad))
    assert names(pairs) == ["good.f"]
    assert pairs.dropped == {"Python files that cannot be read": 4}


def test_files_that_do_not_parse_are_counted(tmp_path: Path) -> None:
    sources: dict[str, str | bytes] = {
        "python2.py": "print 'no parentheses'\n",
        "half.py": "def f(:\n",
        "notes.py": "These are notes, and no code.\n",
        "zero.py": "x = 1\0\n",
        "constants.py": "x = 1\n",  # code, of which no function asks
        "good.py": F,
    }
    pairs, _ = read(tree(tmp_path, sources))
    assert names(pairs) == ["good.f"]
    assert pairs.dropped == {"Python files that cannot be read": 4}


@pytest.mark.parametrize(
    "rest",
    [
        "def (:\n",
        "print 'x'\n",
        "x = '\0'\n",
        "x = " + "-" * 20_000 + "1\n",
        "x" + ".a" * 20_000 + "\n",
    ],
)
def test_a_fault_of_syntax_leaves_the_definitions_before_it(rest: str) -> None:
    assert (
        list(PythonSource(F + rest).pairs())
        == list(PythonSource(F).pairs())
        == [("f", "Double it.", "def f(x):\n    return 2 * x", 1)]
    )


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        (
            'x = """\ndef f():\n    "No."\n"""\ndef g():\n    "G."\n    return 1\n',
            ["def g():\n    return 1"],
        ),
        (
            'def f():\n    "F."\n    x = [\n1,\n]\n    return x\n',
            ["def f():\n    x = [\n1,\n]\n    return x"],
        ),
        (
            'def f():\n    "F."\n    x = 1 + \\\n2\n    return x\n',
            ["def f():\n    x = 1 + \\\n2\n    return x"],
        ),
        (
            'def f():\n    "F."\n    return """\na"""\n# end\nx = 1\n',
            ['def f():\n    return """\na"""'],
        ),
        ('def f(x: dict[str, int] = {"a": 1}, y=lambda: 0) -> "x:y":\n    "F."\n', [""]),
        (
            'class A:\n    x = 1\nif x:\n    def f():\n        "F."\n        return 1  # one\n',
            ["def f():\n    return 1  # one"],
        ),
        ('def f():\n    "F." % x\n', []),
    ],
)
def test_blocks_end_where_python_ends_them(source: str, codes: list[str]) -> None:
    codes = [code or source.partition("\n")[0] for code in codes]
    assert [(name, code) for name, _, code, _ in PythonSource(source).pairs()] == [
        (code.split("(")[0][4:], code) for code in codes
    ]


def test_encodings_are_those_that_files_declare(tmp_path: Path) -> None:
    text = F.replace("Double it.", "Größe.")
    files = {
        "latin.py": b"# -*- coding: latin-1 -*-\n" + text.encode("latin-1"),
        "bom.py": b"\xef\xbb\xbf" + F.encode(),
    }
    pairs, _ = read(
        tree(tmp_path, {**files, "crlf.py": F.replace("Double", "Triple").replace("\n", "\r\n")})
    )
    assert pairs.texts("query") == ["Double it.", "Triple it.", "Größe."]
    assert set(pairs.texts("doc")) == {"def f(x):\n    return 2 * x"}


def test_names_that_are_no_text_and_what_is_no_file(tmp_path: Path) -> None:
    tree(tmp_path, {"good.py": F, "new\nline\t.py": F.replace("Double", "Triple")})
    (tmp_path / "lone.py").write_text('def f():\n    "A lone \\ud800."\n    return 1\n')
    with open(os.fsencode(tmp_path) + b"/\xff.py", "w") as file:
        file.write(F.replace("Double", "Quadruple"))
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    assert stat.S_ISFIFO((tmp_path / "pipe.py").stat().st_mode)
    pairs, _ = read(tmp_path)
    assert set(pairs.texts("query")) == {"Double it.", "Triple it.", "Quadruple it.", "A lone ?."}


def test_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the files that are read nor those that lie in the current folder under the names of
    modules."""
    marker = tmp_path / "marker"
    run = f"open({str(marker)!r}, 'w').close()\n"
    exec(run)  # it would leave a trace
    assert marker.exists()
    marker.unlink()
    posing = dict.fromkeys(
        ("ast.py", "numpy.py", "tqdm/__init__.py", "tempera/__init__.py", "sitecustomize.py"), run
    )
    root = tree(
        tmp_path / "root",
        {"effect.py": F + run, "conftest.py": run, "pkg/__init__.py": run, **posing},
    )
    monkeypatch.chdir(root)
    pairs, _ = read(root, workers=1)
    assert names(pairs) == ["effect.f"]
    assert not marker.exists()
    assert not list(root.rglob("__pycache__"))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """320 files of a function each, some of them alike."""
    text = 'def f{0}(x):\n    """Add {0}."""\n    return x + {0}\n'
    return tree(
        tmp_path,
        {f"{i % 7}/m{i:03}.py": text.format(i % 300) + "#" * (i * 37 % 101) for i in range(320)},
    )


def test_the_same_pairs_with_any_number_of_workers_in_a_fixed_order(many: Path) -> None:
    # 320 files are shared out to 3 processes at most.
    runs = [read(many, workers=workers) for workers in (0, 3, 3)]
    tables = [pairs.table for pairs, _ in runs]
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])
    assert [asked for _, asked in runs] == [[True] * 300] * 3
    places = runs[0][0].texts("place")
    assert places == sorted(places)


def test_repeated_pairs_are_dropped(many: Path) -> None:
    pairs, _ = read(many)
    places = set(pairs.texts("place"))
    by_place = sorted(f"{many}/{i % 7}/m{i:03}.py:1" for i in range(320))
    number = {place: int(place[-8:-5]) % 300 for place in by_place}
    first = {number[place]: place for place in reversed(by_place)}
    assert places == set(first.values()) and len(places) == 300


def test_roots_come_in_the_given_order_and_do_not_share_files(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "x.py": F,
            "z/x.py": F.replace("Double", "Triple"),
            "a/x.py": F.replace("Double", "Halve"),
        },
    )
    pairs, asked = read(tmp_path / "z", tmp_path)
    assert names(pairs) == ["x.f", "a.x.f", "x.f"]
    assert pairs.texts("query") == ["Triple it.", "Halve it.", "Double it."]
    assert asked == [True, True, True]


def test_other_peoples_packages_are_no_part_of_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "std/a.py": F,
        "std/site-packages/p.py": F.replace("Double", "Triple"),
        "std/venv/dist-packages/q.py": F.replace("Double", "Halve"),
        "std/__pycache__/r.py": F.replace("Double", "Square"),
    }
    std, site = tree(tmp_path, files) / "std", tmp_path / "std/site-packages"
    monkeypatch.setattr(installed_python, "installed_roots", lambda: [std, site])
    assert [path.name for path in python_files(std, others=[std, site])] == ["a.py"]
    pairs, asked = read()
    assert dict(zip(names(pairs), asked)) == {"a.f": True, "p.f": False}  # read, and not asked


def test_the_installed_roots_are_there() -> None:
    roots = installed_roots()
    assert (roots[0] / "ast.py").is_file() and all((root / "torch").is_dir() for root in roots[1:2])
    assert len(set(roots)) == len(roots) >= 2
    assert Path(os.__file__) in set(python_files(roots[0], roots))


def test_long_documents_are_cut(tmp_path: Path) -> None:
    pairs, _ = read(tree(tmp_path, {"a.py": F.replace("2 * x", "'ä' * 2")}), max_characters=23)
    assert pairs.texts("doc") == ["def f(x):\n    return 'ä"]


# What cannot be read.


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no Python files under {0}"),
        ({"a.txt": F}, "no Python files under {0}"),
        ({"a.py": "x = 1\n"}, "no function or class with a docstring in the 1 files under {0}"),
        (
            {"a.py": "x = 1\n", "b.py": F.encode() + b"x = '\xff'\n"},
            "no function or class with a docstring in the 2 files under {0}; of them 1 cannot be read",
        ),
    ],
)
def test_folders_without_pairs(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(DataError) as error:
        read(tree(tmp_path, files))
    assert str(error.value) == message.format(tmp_path)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, tmp_path / "nowhere")
    assert str(error.value) == f"data.roots: no such folder: {tmp_path}/nowhere"


@pytest.mark.parametrize(
    ("worker", "code"),
    [
        ("kill -KILL $$", -signal.SIGKILL),
        ("exit 3", 3),
        ("cat >/dev/null; kill -TERM $$", -signal.SIGTERM),
        ("cat >/dev/null", 0),
        ("cat >/dev/null; echo 'a line that some start-up file printed'", 0),
        (r"cat >/dev/null; printf '\377\377\377\377\001\000\000\000'; exec yes", -signal.SIGPIPE),
        ('"{python}" "$@"; kill -KILL $$', -signal.SIGKILL),
        ('"{python}" "$@" 2>/dev/null | head -c 2000; kill -KILL $$', -signal.SIGKILL),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_worker_that_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str, code: int
) -> None:
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\n" + worker.format(python=sys.executable) + "\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    # More names of files than a pipe holds, so that some are still to be written when the worker
    # ends.
    root = tree(tmp_path / ("long" * 50), {f"{i}.py": F for i in range(300)})
    with pytest.raises(DataError) as error:
        read(root, workers=3 if "python" not in worker else 1)
    assert str(error.value) == f"a process that parses Python files stopped with exit code {code}"


def test_hidden_files_and_folders_are_not_read(tmp_path: Path) -> None:
    source = 'def f(x):\n    "Add one."\n    return x + 1\n'
    tree(tmp_path, dict.fromkeys(("a.py", ".b.py", ".venv/lib/c.py", "d/e.py"), source))
    assert [path.relative_to(tmp_path).as_posix() for path in python_files(tmp_path)] == [
        "a.py",
        "d/e.py",
    ]


# Functions without a docstring, which training begins with.

BARE = """
class Clock:
    '''Tell the time.'''

    def next_hour(self):
        # Round up, as an hour that has begun counts.
        minute = self.minute
        return self.hour + (minute > 0)  # of 24

    def __repr__(self):
        first = 1
        return first

    def tick(self):
        self.minute += 1
        return self

    def told(self):
        '''Say it.'''
        def say_it(word):
            word = word + " "
            return word
        return say_it("now")


def holds_another():
    def documented():
        '''Its text may be held out.'''
        return 1
    return documented


async def plain_function():
    # short
    return (
        next_hour
    )
"""


def test_names_and_comments_ask_for_functions_that_are_no_part_of_a_document() -> None:
    code = "def (self):\n    minute = self.minute\n    return self.hour + (minute > 0)  # of 24"
    assert [row[1:3] for row in PythonSource(BARE).made()] == [
        ("Clock next_hour", code),
        ("Round up, as an hour that has begun counts.", code),
        ("plain_function", "async def ():\n    return (\n        next_hour\n    )"),
    ]
    assert [row[0] for row in PythonSource(BARE).pairs()] == [
        "Clock",
        "Clock.told",
        "holds_another.documented",
    ]


def test_functions_without_a_docstring_are_searched_and_ranked_in_folders_that_are_named(
    tmp_path: Path,
) -> None:
    rows = {row[0]: row[1:3] for row in PythonSource(BARE).unasked()}
    assert list(rows) == [
        "Clock.next_hour",
        "Clock.__repr__",
        "Clock.tick",
        "holds_another",
        "plain_function",
    ]
    assert rows["holds_another"] == (
        "",
        "def holds_another():\n    def documented():\n        return 1\n    return documented",
    )
    root = tree(
        tmp_path / "src",
        {"clock.py": BARE, "bare.py": "def twice(x):\n    y = x\n    return 2 * y\n"},
    )
    pairs, asked = read(root)
    unasked = sorted(f"clock.{name}" for name in rows)
    assert (
        sorted(names(pairs)[-6:]) == ["bare.twice", *unasked]
        and all(asked[-6:])
        and pairs.unasked.tolist()[-6:] == [True] * 6
    )
    assert (
        set(pairs.texts("query")[-6:]) == {""}
        and "" not in pairs.texts("query")[:-6]
        and not pairs.dropped
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installed_python, "installed_roots", lambda: [root])
        patch.setattr(installed_python, "_worker", parsed_here)
        own, _ = InstalledPython().read()
    assert names(own) == names(pairs)[:-6]


def test_made_rows_are_read_in_one_order_and_are_no_pairs(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "src", {f"m{i}.py": BARE.replace("Clock", f"Clock{i}") for i in range(5)}
    )
    pairs, asked = read(root)
    assert pairs.made is not None and len(pairs) == 5 + 1 + 1 + 5  # equal functions are read once
    assert len(pairs.made) == 5 + 1 + 1 and sum(asked) == 2 + 5
    (again, _), made = read(root, workers=2), pairs.made
    assert again.made is not None and again.made.table.equals(made.table)
    assert not set(pairs.ids("doc").tolist()) & set(made.ids("doc").tolist())
    assert {query.split()[0] for query in made.texts("query")} == {
        *(f"Clock{i}" for i in range(5)),
        "Round",
        "plain_function",
    }


def test_lines_of_strings_are_no_comments_and_unmatched_brackets_make_nothing() -> None:
    source = '''
def write_script(path):
    text = """
# this line belongs to the text
"""
    path.write_text(text)
'''
    ((_, query, code, _),) = PythonSource(source).made()
    assert query == "write_script" and "# this line belongs to the text" in code
    assert not list(
        PythonSource("def read_all(x):\n    a = (\n    b = 1\n    return a\n" * 3).made()
    )


def test_a_function_behind_a_class_has_its_own_name_alone() -> None:
    source = """
class Alpha:
    x = 1

if True:
    def free_function(a):
        b = a
        return b
"""
    assert [row[1] for row in PythonSource(source).made()] == ["free_function"]


def test_other_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('def f():\n    """Return one."""\n    return 1\n')
    (tmp_path / "b.md").write_text("# A page")
    pairs, _ = read(tmp_path)
    assert pairs.dropped == {"files with other endings (.md)": 1}
