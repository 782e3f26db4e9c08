"""Plain values of the data and results of a task, for reports, model cards, indexes and dry
runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import quantity
from .evaluation import Part
from .verdict import TOGETHER, SystemScores, Verdict

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
SHOWN = 3  # rows of a dry run
Lengths = NDArray[np.integer]


@dataclass(frozen=True)
class Labels:
    """Facts for the model card, known only to the author.

    Args:
        title: heading of the card; None names the kind of model.
        license: licence of the model, for example apache-2.0.
        data_license: licence of the training data.
        language: language of the texts, for example en.
    """

    title: str | None = None
    license: str | None = None
    data_license: str | None = None
    language: str | None = None


@dataclass(frozen=True)
class Subject:
    """The words for a kind of model on cards and in reports."""

    card_title: str
    sentence: str
    use: str  # Python
    head: Mapping[str, Any]  # of the card's YAML, as the hub reads it
    report_title: str
    facts: Mapping[str, str]  # counts of the data by name, with their titles in the report
    examples: str
    right: str
    random: str
    more: str = "on more data, or for more epochs"  # advice for a better model
    finer: str = ""  # advice for smaller intervals
    whole: str = ""  # subject of the table of systems, if there are several tables


@dataclass(frozen=True)
class Hit:
    """A result of a query."""

    name: str
    place: str
    score: float
    relevant: bool


@dataclass(frozen=True)
class Example:
    """A held-out query and the results of the trained system; a rank counts from 1 and is None
    below the first 100."""

    query: str
    answers: tuple[str, ...]  # names of relevant documents
    hits: tuple[Hit, ...]  # the trained system's first results
    baseline_rank: int | None  # of the baseline's first relevant result
    rank: int | None  # of the trained system's first relevant result


@dataclass(frozen=True)
class DataFacts:
    """The data of a run, in numbers and sentences.

    Args:
        source: the data source with its automatic options resolved; None without such options.
        headline: the counts in a sentence.
        counts: pairs, train, validation, queries (of the test), corpus, and dropped by reason.
        notes: further lines.
        about: the source of the data in a sentence, or a table of columns.
        subject: the words for the kind of model.
        chooses: True if the validation set is large enough to choose weights by.
        has_looks: True if there is anything to judge by during training.
        made_rows: number of made rows beside each pair in the first steps.
        tower: the options of the tower, where the data have decided some options; else None.
    """

    source: Any
    headline: str
    counts: dict[str, Any]
    subject: Subject
    chooses: bool
    has_looks: bool
    notes: tuple[str, ...] = ()
    about: str = ""
    made_rows: int = 0
    tower: Any = None

    @property
    def lines(self) -> list[str]:
        """Lines of text for the start of a run."""
        lines = self.about.split("\n") if self.about else []
        lines.append(self.headline)
        for reason, count in self.counts["dropped"].items():
            if count:
                lines.append(f"left out: {quantity(count, reason)}")
        lines += self.notes
        return lines


@dataclass(frozen=True)
class Looks:
    """The looks at validation during a training.

    Args:
        number: of looks between the first step and the last, at most `train.evaluations`.
        corpus: number of documents to rank in a look; None is all.
    """

    number: int
    corpus: int | None = None


@dataclass(frozen=True)
class RefitPlan:
    """The parts of held-out data for a refit.

    Args:
        auto: the parts of `train.refit: auto`, in order, where much is held out.
        rows: gives the number of training pairs or events of the refit on a part and all earlier
            parts.
    """

    auto: tuple[Part, ...]
    rows: Callable[[Part], int]


@dataclass(frozen=True)
class Compared:
    """The trained tower beside other systems on the same test.

    Args:
        systems: scores by name, in the order of a table: the untrained tower, baselines, the
            trained tower, and the trained tower together with words or counts. Empty without
            held-out data.
        about: further values for metrics.json.
        examples: held-out queries at random, with the answers of the trained system.
    """

    systems: Mapping[str, SystemScores]
    about: Mapping[str, Any]
    examples: Sequence[Example]


@dataclass(frozen=True)
class Searched:
    """The documents or items for a saved model to search.

    Args:
        vectors: [c, D].
        documents: a table with the columns doc_id, name, place and doc; one row each, [c].
        normalised: True if vectors have length 1 and are compared by cosine; False for comparison
            by inner product.
        tables: further tables of the run, by path in the run's folder.
    """

    vectors: NDArray[np.float32]
    documents: pa.Table
    normalised: bool = True
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


def quantiles(lengths: Lengths) -> dict[str, float]:
    """Return quantiles of lengths, and the share of rows of the greatest length if several rows are
    as long.

    >>> quantiles(np.array([1, 2, 4, 4]))
    {'0%': 1.0, '50%': 2.0, '90%': 4.0, '99%': 4.0, '100%': 4.0, 'at_limit': 0.5}
    """
    cuts = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    result = {f"{share:.0%}": float(cut) for share, cut in zip(QUANTILES, cuts, strict=True)}
    longest = int((lengths == lengths.max()).sum())
    result["at_limit"] = longest / len(lengths) if longest > 1 else 0.0
    return result


def extent(what: str, counts: Lengths) -> dict[str, Any]:
    """Return the least, the mean and the largest of some counts, under a title."""
    return {
        "what": what,
        "least": int(counts.min()),
        "mean": float(counts.mean()),
        "most": int(counts.max()),
    }


def compare_systems(
    before: Verdict | None,
    after: Verdict | None,
    baselines: Callable[[], Mapping[str, SystemScores]],
    about: Callable[[], Mapping[str, Any]],
    examples: Callable[[Mapping[str, SystemScores]], Sequence[Example]],
) -> Compared:
    """Compare a trained tower with the untrained tower and with baselines.

    Fusions of the trained tower with words or counts come last among the systems.

    Args:
        before: the verdict on the untrained tower; None without held-out data to judge by.
        after: the verdict on the trained tower; None likewise.
        baselines: judges other systems on the same test.
        about: gives further values for metrics.json, once the baselines are judged.
        examples: gives held-out queries with the answers of the trained system.
    """
    systems: dict[str, SystemScores] = {}
    if before is not None and after is not None:
        systems = {"untrained": before.ranking, **baselines(), "trained": after.ranking}
        for name in systems.keys() & TOGETHER:
            systems[name] = systems.pop(name)
    values = about()
    return Compared(systems, values, examples(systems) if systems else [])
