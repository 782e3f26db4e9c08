"""Texts without pairs: for learning the similarities of a teacher, or for pairs with titles and
first sentences as queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from ...errors import ConfigError, DataError
from ...forms.proposed_roles import proposed_roles
from ...forms.roles import DOC_NAMES, QUERY_NAMES, TABLE
from ...forms.set_files import is_beir, split_names
from ...forms.text_endings import is_text_file
from ...io.documents import read_lines
from ...io.ids import content_id, form
from ...tables.columns import RoleTable
from ...tables.tables import blocks, is_table, whole_table
from ...tables.vector_files import COLUMNS
from ..read.beir import texts_of
from ..read.keeper import Keeper
from ..read.pairs import RANKED, TEST, TRAIN, VALIDATION, Pairs
from ..read.parts import joined
from ..read.sources import BeirFolder, PairsFile
from ..read.text_files import HEADING_ASKS, UNDIVIDED, files_of, is_code, pair_of, passages, unread

_MOST = 1000  # queries of validation, and of the test, that are drawn or made; and at most a tenth
_BATCH, _STEPS = 512, 300  # rows of two texts each
_TEXTS = RoleTable({"text": ("text", *DOC_NAMES), "title": ("title", "heading")}, ("text",))
_QUERIES = RoleTable({"query": (*QUERY_NAMES, "text")}, ("query",))
# Usual names of splits.
_PARTS = {VALIDATION: ("validation", "valid", "val", "dev"), TEST: ("test",)}


class Document(NamedTuple):
    """A text with its place and its title, or an empty title."""

    title: str
    text: str
    place: str = ""

    @property
    def whole(self) -> str:
        """Return the title and the text, as they are read and searched."""
        return f"{self.title} {self.text}".strip()

    @property
    def id(self) -> int:
        """Return the number of the whole text's content."""
        return content_id(self.whole)


@dataclass
class Unpaired:
    """Hold documents, queries without answers, and pairs of real queries for validation and
    test.

    Args:
        columns: records of the kept columns of the documents, [len(docs)]; None without any.
    """

    docs: list[Document]
    log: list[str] = field(default_factory=list)
    real: dict[int, Pairs] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    columns: pa.ChunkedArray | None = None


@dataclass(frozen=True)
class Documents:
    """Texts without pairs: a teacher compares any two of them, or `rule` makes a pair of each.

    Without a rule, each text is in one training row, with queries of the log as first texts before
    documents. Where the data have no real queries for validation or test, queries are made of a
    tenth of the documents: the title, or else the first sentence, asks for the rest, and the rest
    is ranked in place of the whole document. Single sentences make no queries, and nothing is
    evaluated. The index holds all documents unchanged.

    Args:
        path: a folder of .txt, .md, .html and source files, with long sections divided; a table
            with a column of texts and, if any, a column of titles; or a BEIR folder. Without a
            rule, queries of a table of pairs and of a BEIR folder are read, too.
        queries: a table with a column of queries, or a text file with a query a line: a log of
            queries without answers, for a teacher.
        validation: a table of real queries and their documents, or a split of the BEIR folder.
        test: likewise; without a value, the split "test" of a BEIR folder, or a tenth of the
            queries of a table of pairs.
        keep: further columns of the table or the corpus to keep with the documents, for search to
            return. None keeps every one whose values have at most 200 letters, [] keeps none. Of
            equal documents, the first with a value counts.
        text: column of the texts; None is a column of a usual name, or the only column of texts.
        title: column of the titles; None is a column of a usual name, if any.
        max_characters: a longer section of a text file is divided.
        rule: "heading" makes a pair of each document to train on: its title, or else its first
            sentence, asks for the rest. None makes no pairs.
    """

    path: str
    queries: str | None = None
    validation: str | None = None
    test: str | None = None
    text: str | None = None
    title: str | None = None
    max_characters: Annotated[int, Field(gt=0)] = 2000
    rule: Literal["heading"] | None = None
    keep: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if None not in (self.rule, self.queries):
            raise ConfigError(
                "queries without answers are for a teacher, and rule makes pairs of documents: give only one of them"
            )

    @property
    def schedule(self) -> Callable[[int, bool], tuple[int, float]] | None:
        """Return a function to a batch of 1,024 texts and the epochs of 300 batches, at least one;
        the tower schedules pairs."""
        return _schedule if self.rule is None else None

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return rows of training, validation and test, and all documents, with True for each row
        that evaluation may use.

        Raises:
            DataError: no texts, or files that cannot be read.
        """
        draw = np.random.default_rng(0)
        texts = self._texts()
        ids = [doc.id for doc in texts.docs]
        docs = list(dict(zip(ids, texts.docs, strict=True)).values())
        docs = [docs[i] for i in draw.permutation(len(docs))]
        if len(docs) < 2:
            raise DataError(f"{self.path} holds fewer than two texts: give more")
        parts = dict(texts.real)
        answers = set[int]()
        for pairs in texts.real.values():
            answers.update(pairs.ids("doc").tolist())
        cut = dict[int, None]()  # positions of documents that queries are made of, in order
        for part in _PARTS:
            if part not in texts.real:
                made = _made(docs, cut, answers)
                if len(made):
                    parts[part] = made
        divided = [docs[i] for i in cut]
        whole = [doc for i, doc in enumerate(docs) if i not in cut]
        log = _without_queries(texts.log, parts.values())
        log = [log[i] for i in draw.permutation(len(log))]
        dropped = Counter(texts.dropped) + Counter({"repeated texts": len(texts.docs) - len(docs)})
        if self.rule is None:
            train, ranked = _any_two(log, divided, whole)
        else:
            train = self._training_pairs(whole, dropped)
            ranked = whole
        by_part = {RANKED: _of([""] * (len(ranked) + len(divided)), [*ranked, *divided])}
        by_part[TRAIN] = train
        by_part.update(parts)
        pairs = joined(by_part)
        if texts.columns is not None:
            pairs = pairs.with_columns(np.array(ids, np.int64), texts.columns)
        # Of a divided document, a part is ranked in place of the whole.
        is_divided = np.isin(pairs.ids("doc"), np.array([doc.id for doc in divided], np.int64))
        candidates = np.where(
            pairs.part == RANKED, ~is_divided, (pairs.part != TRAIN) | (self.rule is None)
        )
        about = self._about(len(docs), len(log), {part: part in texts.real for part in parts})
        paired = self.rule is not None
        return replace(pairs, dropped=dict(dropped), about=about, paired=paired), candidates

    def _about(self, docs: int, queries: int, real: Mapping[int, bool]) -> str:
        """Return a sentence on the documents, and on the queries of each part, real or made."""
        parts = list[str]()
        for part, (name, *_) in _PARTS.items():
            if part in real:
                kind = "real queries" if real[part] else "made queries (title or first sentence)"
                parts.append(f"{name} on {kind}")
        judged = ", ".join(parts)
        if TEST not in real:
            judged = f"{judged}; " if judged else ""
            judged += (
                "no test, since there are no questions: too few of the texts have a title, or a second sentence for which "
                "the first could ask; give real ones with data.test=PAIRS"
            )
        if self.rule is not None:
            return f"{self.path} holds {docs:,} documents, of which pairs are made to train on: {HEADING_ASKS}; {judged}"
        texts = f"{docs:,} documents and {queries:,} queries without answers"
        return f"{self.path} holds {texts}; {judged}; a pair to train on is any two of the texts, for a teacher to compare"

    def _training_pairs(self, docs: Sequence[Document], dropped: Counter[str]) -> Pairs:
        """Return a pair of each document that can be divided, and count the rest in `dropped`."""
        made = list[tuple[str, str, Document]]()
        for doc in docs:
            pair = pair_of(doc.title, doc.text)
            if pair is not None:
                made.append((*pair, doc))
        if len(made) < 2:
            raise DataError(
                f"{self.path}: data.rule=heading makes a pair of {len(made)} of {len(docs):,} documents to train on, since the "
                "others have neither a second sentence nor a title: give longer texts"
            )
        dropped += Counter({UNDIVIDED: len(docs) - len(made)})
        return _parts_of(made)

    def _texts(self) -> Unpaired:
        """Return the texts of all paths."""
        path = Path(self.path)
        texts = self._beir(path) if is_beir(path) else self._files(path)
        for part, name in ((VALIDATION, self.validation), (TEST, self.test)):
            if name is not None:
                texts.real[part] = _judged(path, name)
        if self.queries is not None:
            texts.log += _log(Path(self.queries))
        return texts

    def _beir(self, path: Path) -> Unpaired:
        """Return the texts of a BEIR folder, and the pairs of its splits of a usual name."""
        corpus = texts_of(path, "corpus", Keeper(self.keep))
        queries = texts_of(path, "queries")
        docs = list[Document]()
        for row in corpus.select(["id", "title", "text"]).to_pylist():
            title = row["title"]
            text = row["text"][len(title) :].strip()  # follows the title in this column
            docs.append(Document(title, text, f"{path}:{row['id']}"))
        splits = split_names(path)
        real = dict[int, Pairs]()
        for part, names in _PARTS.items():
            present = [name for name in names if name in splits]
            if present:
                real[part] = _judged(path, present[0])
        columns = None
        if COLUMNS in corpus.column_names:
            columns = corpus[COLUMNS]
        return Unpaired(docs, queries["text"].to_pylist(), real, columns=columns)

    def _files(self, path: Path) -> Unpaired:
        """Return the texts of a table, of a folder of tables, or of text files and source code."""
        files = files_of(path, lambda file: is_text_file(file) or is_code(file))
        if not files or (path.is_file() and is_table(path)):
            return _table(path, {"text": self.text, "title": self.title}, Keeper(self.keep))
        if self.keep:
            raise DataError(
                f"{path} holds text files, which have no columns: leave out data.keep={','.join(self.keep)}"
            )
        dropped = unread(path, files)
        docs = [Document(*part) for part in passages(files, self.max_characters, dropped)]
        return Unpaired(docs, dropped=dropped)


def _schedule(rows: int, large: bool = False) -> tuple[int, float]:
    size = min(_BATCH, rows)
    return size, max(1.0, _STEPS / (rows // size))


def _without_queries(log: Sequence[str], judged: Iterable[Pairs]) -> list[str]:
    """Return the distinct queries of a log that no pair of validation or test asks."""
    forms = set[str]()
    for pairs in judged:
        forms.update(map(form, pairs.texts("query")))
    return [query for query in dict.fromkeys(log) if form(query) not in forms]


def _table(path: Path, chosen: Mapping[str, str | None], keeper: Keeper) -> Unpaired:
    """Return the texts of a table. In a table of pairs, a tenth of the queries keep their answers
    for validation, and a tenth for the test."""
    names = next(blocks(path)).table.column_names
    docs = list[Document]()
    if chosen["text"] is not None or not TABLE.suits({}, names):
        (texts, titles), columns = _columns(path, _TEXTS, chosen, keeper)
        rows = []
        for row, (title, text) in enumerate(zip(titles or [""] * len(texts), texts)):
            if title or text:
                docs.append(Document(title, text, f"{path} row {row + 1}"))
                rows.append(row)
        if columns is not None:
            columns = columns.take(pa.array(rows, pa.int64()))
        return Unpaired(docs, columns=columns)
    pairs = _pairs(path, keeper.named)
    for text, place in zip(pairs.texts("doc"), pairs.texts("place")):
        docs.append(Document("", text, place))
    ids = pairs.ids("query")
    # The test has the queries that `hold_out` draws from the same table.
    queries = np.random.default_rng(0).permutation(np.unique(ids))
    count = min(_MOST, len(queries) // 10)
    real = dict[int, Pairs]()
    if count:
        for part, held in ((TEST, queries[:count]), (VALIDATION, queries[count : 2 * count])):
            real[part] = Pairs(pairs.table.filter(pa.array(np.isin(ids, held))))
    return Unpaired(docs, pairs.texts("query"), real, Counter(pairs.dropped), pairs.kept)


def _log(path: Path) -> list[str]:
    """Return the queries of a table, or of a text file or a folder of text files with a query a
    line."""
    files = files_of(path, is_text_file) if path.is_dir() else [path]
    if files and not is_table(path):
        lines = list[str]()
        for file in files:
            lines += [line.strip() for line in read_lines(file)]
        return [line for line in lines if line]
    (texts,), _ = _columns(path, _QUERIES, {"query": None})
    return [text for text in texts if text]


def _columns(
    path: Path,
    roles: RoleTable,
    chosen: Mapping[str, str | None],
    keeper: Keeper | None = None,
) -> tuple[list[list[str]], pa.ChunkedArray | None]:
    """Return a column of texts for each role, an empty list where the table lacks it, and the kept
    columns as records; None without any."""
    rows = whole_table(path)
    table = rows.table
    chosen = _with_only_texts(roles, chosen, table)
    options = SimpleNamespace(**chosen, metadata=("*",))
    columns = roles.columns(options, table.column_names, str(path))
    by_role = list[list[str]]()
    for role in chosen:
        texts = list[str]()
        if role in columns:
            name = columns[role][0]
            texts = [str(text).strip() for text in _cast(table[name], name, path)]
        by_role.append(texts)
    kept = None
    if keeper is not None:
        keeper.refuse_absent(table.column_names, table, str(path))
        with_role = {name for of_role in columns.values() for name in of_role}
        kept = keeper.whole(rows, with_role, columns["text"])
    return by_role, kept


def _with_only_texts(
    roles: RoleTable, chosen: Mapping[str, str | None], table: pa.Table
) -> dict[str, str | None]:
    """Return the chosen columns by role, and for the needed role, where no column has its usual
    name, the only column of texts without another role."""
    (needed,) = roles.needed
    names = table.column_names
    columns = dict(chosen)
    if chosen[needed] is not None or roles.usual_columns(needed, names):
        return columns
    taken = {name for name in chosen.values() if name is not None}
    for role in chosen:
        taken.update(roles.usual_columns(role, names))
    texts = [name for name in names if name not in taken and _holds_texts(table[name])]
    if len(texts) == 1:
        columns[needed] = texts[0]
    return columns


def _holds_texts(column: pa.ChunkedArray) -> bool:
    """Return True for a column of texts, unless all of its texts are numbers."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    try:
        column.cast(pa.float64())
    except pa.ArrowException:
        return True
    return False


def _cast(column: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """Return a column as texts; a missing text is empty."""
    try:
        return column.cast(pa.large_string()).fill_null("")
    except pa.ArrowException:
        raise DataError(f"{path}: column {name!r} holds {column.type}; expected texts") from None


def _judged(path: Path, name: str) -> Pairs:
    """Return the pairs of a split of a BEIR folder, or of a table."""
    if is_beir(path) and name in split_names(path):
        pairs = BeirFolder(str(path), name, corpus="judged", keep=()).read()[0]
        return _by_content(pairs)
    return _pairs(Path(name))


def _pairs(path: Path, keep: Sequence[str] | None = ()) -> Pairs:
    """Return the pairs of a table by their content alone, with columns to keep."""
    rows = next(blocks(path)).table
    names = rows.column_names
    proposal = proposed_roles(rows, {}, str(path)).options
    columns = dict[str, str]()
    for role in TABLE.needed:
        usual = TABLE.usual_columns(role, names)
        if role in proposal:
            columns[role] = proposal[role]
        elif usual:
            columns[role] = usual[0]
    if len(columns) < len(TABLE.needed):
        raise DataError(
            f"{path} is to hold queries and documents that answer them, and its columns are {', '.join(names)}: rename those of "
            "the pairs to query and doc"
        )
    others = tuple(name for name in names if name not in columns.values())
    file = PairsFile(
        path=str(path),
        metadata=others,
        query=columns["query"],
        doc=columns["doc"],
        keep=None if keep is None else tuple(keep),
    )
    pairs, _ = file.read()
    return replace(_by_content(pairs), dropped=pairs.dropped)


def _by_content(pairs: Pairs) -> Pairs:
    """Return pairs by their content, without the ids of the data."""
    return Pairs.of(
        pairs.texts("query"),
        pairs.texts("doc"),
        pairs.texts("name"),
        pairs.texts("place"),
        kept=pairs.kept,
    )


def _made(docs: Sequence[Document], cut: dict[int, None], answers: Collection[int]) -> Pairs:
    """Return pairs made of up to a tenth of the documents, none of them an answer, and add the
    positions of these documents to `cut`."""
    rows = list[tuple[str, str, Document]]()
    most = min(_MOST, len(docs) // 10)
    for i, doc in enumerate(docs):
        if len(rows) == most:
            break
        if i in cut or doc.id in answers:
            continue
        pair = pair_of(doc.title, doc.text)
        if pair is not None:
            rows.append((*pair, doc))
            cut[i] = None
    return _parts_of(rows)


def _parts_of(rows: Sequence[tuple[str, str, Document]]) -> Pairs:
    """Return pairs of a query and a part of a document."""
    return Pairs.of(
        [query for query, _, _ in rows],
        [part for _, part, _ in rows],
        [doc.title for _, _, doc in rows],
        [doc.place for _, _, doc in rows],
        [doc.id for _, _, doc in rows],
    )


def _any_two(
    log: Sequence[str], divided: Sequence[Document], whole: Sequence[Document]
) -> tuple[Pairs, Sequence[Document]]:
    """Return rows of any two texts, and the whole documents among the first texts.

    No row ranks its first text. Queries and divided documents are always first texts: a divided
    document is not ranked as a whole.
    """
    fixed = len(log) + len(divided)
    half = max((fixed + len(whole) + 1) // 2, fixed)
    turned = whole[: half - fixed]
    first = list(log)
    first += [doc.whole for doc in divided]
    first += [doc.whole for doc in turned]
    second = [whole[int(i)] for i in np.resize(np.arange(len(turned), len(whole)), half)]
    return _of(first, second), turned


def _of(queries: Sequence[str], docs: Sequence[Document]) -> Pairs:
    """Return pairs of a query and a whole document."""
    return Pairs.of(
        queries,
        [doc.whole for doc in docs],
        [doc.title for doc in docs],
        [doc.place for doc in docs],
    )
