"""Ten sets of pairs from what Debian and GitHub offer, to judge defaults on that were chosen on
others by `bench/recipe.py`.

`python bench/_fresh_sets.py SOURCES OUTPUT` writes OUTPUT/NAME.parquet, with the columns query and
document, for each folder or file that SOURCES holds:

    elisp     the package emacs-el, unpacked: the first line that documents a function, and the function without what documents it
    perl      the package perl-doc, unpacked: the heading of a section, and its text
    rfc       the packages doc-rfc-*, unpacked: the title, and the first 600 words from the abstract or the introduction on
    debian    the file Translation-en of a Debian mirror: the synopsis of a package, and its description
    commits   a clone of git/git: the subject of a commit, and its message
    biology   a clone of thiagoprocaci/biology-question-answer-data: a question's title, and its best answer
    doctors   a clone of LasseRegin/medical-question-answer-data: a question, and a doctor's answer
    concode   the folder concode of a clone of microsoft/CodeXGLUE: the comment of a method in Java, and its tokens
    mail      the folder data/messages of a clone of r-mailing-lists/data: the subject of a thread's first mail, and its text; and
              as the set replies: a mail of at most 200 words, and what answers it, both without
                  what they quote

The temperature of many long texts, and the weight of vectors beside words, have been chosen with
rfc, debian and commits in view; nothing has with the other seven.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

Pairs = Iterator[tuple[str, str]]
MOST, FEWEST_WORDS = 10_000, 15


def text_of(path: Path) -> str:
    """Return a text file, which may be compressed."""
    with (
        gzip.open(path, "rt", errors="ignore")
        if path.suffix == ".gz"
        else path.open(errors="ignore") as file
    ):
        return str(file.read())


def elisp(folder: Path) -> Pairs:
    """Return what documents a function in Emacs Lisp, and the function."""
    function = r'^\(defun (\S+) (\([^)]*\))\n\s*"((?:[^"\\]|\\.)*)"\n(.*?)(?=^\(|\Z|^;;;)'
    for path in sorted(folder.rglob("*.el.gz")):
        for name, takes, says, body in re.findall(
            function, text_of(path), re.DOTALL | re.MULTILINE
        ):
            first = says.split("\n")[0].replace("\\", "").strip()
            if len(first.split()) >= 4 and len(body.split()) >= 8:
                yield first, f"(defun {name} {takes}\n  {body.strip()}"[:3000]


def perl(folder: Path) -> Pairs:
    """Return headings and their sections, without marks."""
    section, marks = r"^=(?:head[234]|item) (.+?)\n\n(.*?)(?=^=)", r"[A-Z]<+\s*(.*?)\s*>+"
    for path in sorted(folder.rglob("*.pod")):
        for heading, body in re.findall(section, text_of(path), re.DOTALL | re.MULTILINE):
            if len(heading.split()) >= 2:
                yield tuple(
                    re.sub(marks, r"\1", " ".join(each.split())) for each in (heading, body)
                )  # type: ignore[misc]


def rfc(folder: Path) -> Pairs:
    """Return titles of RFCs, and their first words."""
    (index,) = folder.rglob("rfc-index.txt*")
    entries = re.findall(r"^(\d{1,4}) (.+?)\n\n", text_of(index), re.DOTALL | re.MULTILINE)
    titles = {int(number): " ".join(entry.split()).split(". ")[0] for number, entry in entries}
    for path in sorted(folder.rglob("rfc[0-9]*.txt*")):
        number, text = int(re.findall(r"\d+", path.name)[0]), text_of(path)
        start = re.search(
            r"\n\s*(?:Abstract|1\.?\s+Introduction|INTRODUCTION|Introduction)\s*\n", text
        )
        body = re.sub(r"\n.*\[Page \d+\]\s*\n\f?.*\n", "\n", text[start.end() if start else 1500 :])
        if number in titles and len(body.split()) > 100:
            yield titles[number], " ".join(body.split()[:600])


def debian(path: Path) -> Pairs:
    """Return synopses of packages, and their descriptions."""
    for synopsis, body in re.findall(
        r"^Description-en: (.*)\n((?: .*\n)*)", text_of(path), re.MULTILINE
    ):
        yield synopsis, " ".join(line.strip() for line in body.split("\n") if line.strip() != ".")


def commits(folder: Path) -> Pairs:
    """Return subjects of commits, and messages without who signed them."""
    log = ["git", "-C", str(folder), "log", "--no-merges", "--format=%s%x01%b%x00"]
    text = subprocess.run(log, capture_output=True, text=True, errors="ignore", check=True).stdout
    for subject, body in (each.split("\1") for each in text.split("\0") if "\1" in each):
        kept = [
            line for line in body.split("\n") if not re.match(r"[A-Z][A-Za-z-]+-by:|Cc:|Link", line)
        ]
        yield subject, "\n".join(kept)


def biology(folder: Path) -> Pairs:
    """Return questions of Biology Stack Exchange, and their best answers."""
    for path in sorted(folder.rglob("file_*")):
        for question in json.loads(text_of(path))["items"]:
            for best in sorted(question.get("answers", []), key=lambda answer: -answer["score"])[
                :1
            ]:
                body = html.unescape(re.sub(r"<[^>]+>", " ", best["body"]))
                yield html.unescape(question["title"]), " ".join(body.split())


def doctors(folder: Path) -> Pairs:
    """Return questions and answers of doctors."""
    for each in json.loads(text_of(folder / "questionDoctorQAs.json")):
        yield each["question_text"], each["answer"]


def concode(folder: Path) -> Pairs:
    """Return comments and methods of classes in Java."""
    for path in (folder / "dev.json", folder / "test.json"):
        for each in map(json.loads, text_of(path).splitlines()):
            yield each["nl"].split("concode_field_sep")[0], each["code"]


def mails(folder: Path) -> list[dict[str, Any]]:
    """Return mails with their own words: without lines that they quote, and without what stands
    below a signature's mark."""
    columns = ["message_id", "in_reply_to", "subject", "body"]
    tables = [
        parquet.read_table(path, columns=columns) for path in sorted(folder.glob("r-*.parquet"))
    ]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    for row in rows:
        written = re.split(r"(?m)^(?:-- ?$|_{10,}|-{5,}|-\.-)", row["body"])[0]
        written = re.sub(r"(?m)^(?:\s*[>|:].*|.* wrote:\s*|.* writes:\s*)(?:\n|\Z)", "", written)
        row["own"] = re.sub(r"\n{3,}", "\n\n", written).strip()
    return rows


def mail(folder: Path) -> Pairs:
    """Return subjects of the first mails of threads, and their texts."""
    marks, texts = r"(?i)^\s*(?:(?:re|fwd?|aw|sv)\s*:\s*|\[[^\]]*\]\s*)+", dict[str, str]()
    for each in mails(folder):
        subject = re.sub(marks, "", each["subject"]).strip()
        if (
            each["in_reply_to"] is None
            and len(subject.split()) >= 3
            and not each["subject"].lower().startswith("re:")
        ):
            texts.setdefault(subject, each["own"][:4000])
    yield from texts.items()


def replies(folder: Path) -> Pairs:
    """Return mails, and the first that answers each."""
    rows, texts = mails(folder), dict[str, str]()
    known = {each["message_id"]: each["own"] for each in rows}
    for each in rows:
        asked = known.get(each["in_reply_to"], "")
        if 10 <= len(asked.split()) <= 200 and len(each["own"].split()) <= 400:
            texts.setdefault(asked, each["own"][:4000])
    yield from texts.items()


# The fewest words of a document where short ones say nothing.
SETS = {
    elisp: 0,
    perl: FEWEST_WORDS,
    rfc: 0,
    debian: FEWEST_WORDS,
    commits: 20,
    biology: FEWEST_WORDS,
    doctors: 0,
    concode: 0,
    mail: FEWEST_WORDS,
    replies: FEWEST_WORDS,
}
SOURCES = {replies: "mail"}  # of a set that is made of another's


def main() -> None:
    """Write the sets whose sources are there, and print their sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for read, fewest in SETS.items():
        if not (source := options.sources / SOURCES.get(read, read.__name__)).exists():
            print(f"{read.__name__}: {source} is missing")
            continue
        of_doc = {doc.strip(): query.strip() for query, doc in read(source)}
        pairs = [(query, doc) for doc, query in of_doc.items() if doc and query and query != doc]
        pairs = sorted(pair for pair in pairs if len(pair[1].split()) >= fewest)
        random.Random(0).shuffle(pairs)
        queries, docs = zip(*pairs[:MOST], strict=True)
        parquet.write_table(
            pa.table({"query": queries, "document": docs}),
            options.output / f"{read.__name__}.parquet",
        )
        words = sorted(len(doc.split()) for doc in docs)
        print(
            f"{read.__name__}: {len(docs):,} pairs, median document of {words[len(words) // 2]} words"
        )


if __name__ == "__main__":
    main()
