"""The command that searches a run, for one query or for each line of input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, one_line
from .output import console, has_styles
from .shared import Json, answer

if TYPE_CHECKING:
    from rich.text import Text

    from ..artifacts.run_folder import Run
    from ..corpus.index import Found

_LENGTH = 100  # letters of a document in a line that is no terminal's
_LEAST = 40  # and in a narrow terminal
_LINKS = ("url", "link")  # columns of links, in lower case
_SCHEMES = ("http://", "https://")
_NOTHING = "the model knows no word of this query, so that the order of these hits says nothing"
# Words of a query that are never marked.
# fmt: off
_COMMON = {
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "how", "i", "in", "is", "it",
    "my", "of", "on", "or", "that", "the", "this", "to", "what", "when", "where", "which", "who", "why", "with",
}
# fmt: on


def search(
    run: Path,
    query: Annotated[str | None, typer.Argument()] = None,
    k: Annotated[int, typer.Option("-k", min=1)] = 10,
    hybrid: bool = False,
    index: Path | None = None,
    onnx: Path | None = None,
    threshold: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    where: Annotated[str | None, typer.Option(metavar="EXPRESSION")] = None,
    explain: bool = False,
    as_json: Json = False,
) -> None:
    """Search the documents of a run, or an encoded corpus.

    Without a query, each line of input is one.

    Args:
        run: run folder, or folder of vectors.
        query: text to search for.
        k: number of hits to show.
        hybrid: rank by words (BM25) and vectors together.
        index: exported index or folder of vectors to search instead of the run's own.
        onnx: exported ONNX model to embed the query with.
        threshold: lowest probability to show; see calibrate.
        where: search only documents for which this is true, an expression of DuckDB over the kept
            columns, e.g. "lang = 'de' and year >= 2024".
        explain: show under each hit the largest parts of its score; with --json, all parts.
    """
    from ..corpora.corpus_manifest import is_corpus

    shards = run if index is None else index
    if is_corpus(shards):
        _refuse_of_runs(hybrid, onnx, threshold, where, explain)
        _search_shards(shards, None if index is None else run, query, k, as_json)
        return
    from ..artifacts.run_folder import Run

    searched = Run(run)
    piped = query is None and not _at_terminal()
    # Probabilities of all hits are asked for, so that the hits left out can be counted.
    lowest = None if threshold is None else 0.0
    for text in _lines() if query is None else [query]:
        ranked = searched.search(text, k, index, onnx, lowest, hybrid, where)
        hits = ranked
        if threshold is not None:
            hits = [hit for hit in ranked if (hit.probability or 0.0) >= threshold]
        explanations = []
        if explain:
            explanations = searched.explain(text, hits, hybrid, index, passages=0)
        notes = []
        if ranked and _is_unread(searched, text, ranked, hybrid):
            notes.append(_NOTHING)
        if where is not None and not ranked:
            notes.append("no document passes --where")
        document: dict[str, Any] = {
            "query": text,
            "hits": [hit.json() for hit in hits],
            "notes": list(notes),
        }
        for hit, explanation in zip(document["hits"], explanations):
            hit["explanation"] = explanation.json()
        if where is not None:
            document["where"] = where
            document["passing"] = len(searched.passing(where, index))
        if threshold is not None:
            left_out = len(ranked) - len(hits)
            document["threshold"] = threshold
            document["left_out"] = left_out
            notes.append(
                f"left out: {left_out} of {len(ranked)} with a probability below {threshold:g}"
            )
        lines = [explanation.line() for explanation in explanations]
        answer(document, as_json, lambda: _show(text, hits, notes, piped, lines))  # noqa: B023  # it is called at once


def _refuse_of_runs(
    hybrid: bool,
    onnx: Path | None,
    threshold: float | None,
    where: str | None,
    explain: bool,
) -> None:
    """Raise ConfigError for an option that needs the documents of a run."""
    options = {
        "--hybrid": hybrid,
        "--onnx": onnx is not None,
        "--threshold": threshold is not None,
        "--where": where is not None,
        "--explain": explain,
    }
    for option, is_given in options.items():
        if is_given:
            raise ConfigError(
                f"{option} is for documents of a run, not for shards of vectors: drop it"
            )


def _search_shards(
    folder: Path, model: Path | None, query: str | None, k: int, as_json: bool
) -> None:
    """Search the rows of a corpus in shards; without a model, by the model that encoded it."""
    from ..artifacts.encoded_corpus import EncodedCorpus

    corpus = EncodedCorpus(folder, model)
    piped = query is None and not _at_terminal()
    for text in _lines() if query is None else [query]:
        hits = corpus.search(text, k)
        document = {"query": text, "hits": [hit.json() for hit in hits], "notes": []}
        answer(document, as_json, lambda: _show(text, hits, [], piped))  # noqa: B023  # it is called at once


def _is_unread(run: Run, query: str, ranked: Sequence[Found], hybrid: bool) -> bool:
    """Return True if the model of a run knows no word of a query.

    All scores are then 0, or the query has the vector of unknown words. Words (BM25) may still
    rank the hits of a hybrid search.
    """
    if not any(hit.score for hit in ranked):
        return True
    return not hybrid and run.is_unknown(query)


def _at_terminal() -> bool:
    """Return True if queries are typed at a terminal and answered there."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _lines() -> Iterator[str]:
    """Yield the lines of standard input.

    The lines end with the input, or with an empty line at the prompt of a terminal.
    """
    if not _at_terminal():
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        for line in sys.stdin:
            if line.strip():
                yield line.rstrip()
        return
    import readline  # noqa: F401  # gives the prompt a history

    while True:
        try:
            line = input("search: ")
        except EOFError:
            print()
            return
        if not line.strip():
            return
        yield line


def _show(
    query: str,
    hits: Sequence[Found],
    notes: Sequence[str],
    with_query: bool,
    reasons: Sequence[str] = (),
) -> None:
    """Print a line for each hit: rank, score, name or beginning of the text, and link or place.

    Args:
        with_query: print the query first.
        reasons: a line to print under each hit; none prints no line.
    """
    if with_query:
        print(f"search: {one_line(query)}")
    heads = [f"{hit.rank:>2}  {hit.score:.3f}  {percent(hit.probability)}" for hit in hits]
    places = [one_line(_place(hit)) for hit in hits]
    if not has_styles():  # and without a library of styles, which takes time to load
        texts = _texts(hits, _LENGTH)
        width = max(map(len, texts), default=0)
        for number, (head, text, place) in enumerate(zip(heads, texts, places)):
            print(f"{head}{text:<{width}}  {place}")
            if reasons:
                print(f"    {reasons[number]}")
        for note in notes:
            print(note)
        return
    from rich.text import Text

    terminal = console(highlight=False)
    around = max((len(head) + len(place) + 2 for head, place in zip(heads, places)), default=0)
    length = max(_LEAST, terminal.width - around) if terminal.is_terminal else _LENGTH
    texts = _texts(hits, length)
    width = max(map(len, texts), default=0)
    for number, (head, text, place) in enumerate(zip(heads, texts, places)):
        gap = " " * (width - len(text) + 2)
        line = Text.assemble(head, marked(text, query), gap, (place, "dim"))
        terminal.print(line, soft_wrap=True)
        if reasons:
            terminal.print(Text(f"    {reasons[number]}", "dim"), soft_wrap=True)
    for note in notes:
        terminal.print(note, soft_wrap=True)


def _texts(hits: Sequence[Found], length: int) -> list[str]:
    """Return the name of each hit, or the beginning of its text, up to a length."""
    return [one_line(hit.name or " ".join(hit.preview.split()))[:length] for hit in hits]


def _place(hit: Found) -> str:
    """Return the link of a document, from a kept column called url or link; else its place."""
    for name, value in hit.columns.items():
        if name.lower() in _LINKS and isinstance(value, str) and value.startswith(_SCHEMES):
            return value
    return hit.place


def marked(text: str, query: str) -> Text:
    """Return a text with the words of a query in bold, compared by their stems; common words of the
    query are left out.

    >>> marked("Sorted by dates, descending", "sort by a date").spans
    [Span(0, 6, 'bold'), Span(10, 15, 'bold')]
    """
    import re

    from rich.text import Text

    from ..text.judge.lexical import stemmer, words

    uncommon = [word for word in words(query) if word not in _COMMON]
    stems = set(stemmer().stemWords(uncommon))
    line = Text(text)
    for match in re.finditer(r"[^\W_]+", text):
        if not stems.isdisjoint(stemmer().stemWords(words(match[0]))):
            line.stylize("bold", match.start(), match.end())
    return line


def percent(probability: float | None) -> str:
    """Return a column of probabilities; empty for a model without calibration."""
    return "" if probability is None else f"{probability:>5.0%}  "
