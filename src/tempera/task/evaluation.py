"""Options of the evaluation on held-out queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..errors import ConfigError
from ..ranking.metrics import DEFAULT_METRICS, parsed

Part = Literal["validation", "test"]  # held-out queries: to choose by, and to report on
MOST = 1500  # queries of validation, and of test, unless a number is given


@dataclass(frozen=True)
class Evaluation:
    """Options of the evaluation on held-out queries.

    Args:
        queries: number of distinct test queries. A larger number than half of the eligible queries
            (queries that share no text with named test or validation data) is cut to the half. None
            is a tenth of all distinct queries, at most 1,500, and at most a quarter of the eligible
            queries; or all queries of a file that is named as the test. With 0 there is no test,
            and the run reports no metrics; with `validation` 0 too, nothing is evaluated at all.
            For a recommender, the largest number of test queries of each protocol; None is 2
            billion divided by the number of items.
        validation: number of distinct validation queries, with the same limits; with 0, evaluations
            during training use the test queries. For a recommender, the largest number of
            validation events, 1,500 by default.
        seed: seed of the choice of held-out queries, which is independent of `train.seed`.
        shared_documents: "drop" keeps documents that answer held-out queries out of training, as
            answers and as queries. Held-out queries are drawn in whole groups of pairs that share
            texts, and training leaves out pairs that share a text with a file that is named as the
            test or validation. "keep" trains on documents of held-out queries, as the splits of
            many public data sets do, which raises the scores. With "drop", too, training keeps the
            documents of a source with five distinct queries or more for each document, on average:
            documents of such a source are like labels. With "drop" and with "keep", training leaves
            out the texts of held-out queries.
        metrics: any of ndcg, mrr, recall, precision, hit and map, each with a depth, such as
            ndcg@10.
        bm25: tune BM25 on training queries and report it beside the trained model.
        baselines: report popularity, item-kNN, EASE and transition counts beside a recommender.
        cold_items: share of the items to withhold from a recommender's training and to evaluate as
            new items.
        also: other data to evaluate a model of texts on, before and after training: BEIR folders,
            tables of pairs or graded pairs. The run names data on which training has made the model
            worse.
        budget: largest share of the time for evaluation during training; an evaluation above the
            budget is skipped and counted. 1 is no limit.
        corpus: number of documents to rank during training: all relevant documents, documents that
            the untrained model confuses with them, and random documents. "auto" ranks so many that
            these evaluations cost about an eighth of training (and leaves some of
            `train.evaluations` out of a short run); with a tower whose vectors are looked up, some
            ten thousand, or all documents of a smaller corpus. None ranks all documents, as the
            evaluation on the test does. Scores on fewer documents are too high; the bias is
            measured on some queries, on the untrained model.
    """

    queries: Annotated[int, Field(ge=0)] | None = None
    validation: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    shared_documents: Literal["drop", "keep"] = "drop"
    metrics: tuple[str, ...] = DEFAULT_METRICS
    bm25: bool = True
    baselines: bool = False
    cold_items: Annotated[float, Field(ge=0, lt=1)] = 0.0
    also: tuple[str, ...] = ()
    budget: Annotated[float, Field(ge=0, le=1)] = 1.0
    corpus: Annotated[int, Field(gt=0)] | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError("metrics is empty; give at least one, such as ndcg@10")
        for name in self.metrics:  # refuse a wrong name before a long run
            parsed(name)
