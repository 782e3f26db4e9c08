"""What a run would train on, before it does: rows with their roles, lengths, repeats, negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..core.ragged import Ragged
from ..recommend.visits import Visits
from .catalogue import Catalogue
from .pairs import Rows

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
SHOWN = 3
_CHARACTERS = 200


def summary(catalogue: Catalogue, rows: Rows, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """Of the training rows: three of them, quantiles of their token lengths, rates of repeats, negatives a query.

    Args:
        rows: [n] pairs that are trained on.
        queries: tokens of the distinct queries, [p], and
        docs: documents, [u], as the tower reads them.

    A text is at the limit if it has as many tokens as the longest of all and another one has so, too: where a tower
    cuts its texts, all that it has cut are among them.
    """
    own = catalogue.negatives[torch.from_numpy(rows)]
    return {
        "unit": "tokens",
        "rows": [_shown(catalogue, int(row), queries, docs) for row in rows[:SHOWN]],
        "tokens": {
            "query": _lengths(queries.lengths[torch.from_numpy(catalogue.query_of[rows])]),
            "doc": _lengths(docs.lengths[torch.from_numpy(catalogue.doc_of[rows])]),
            **({"negatives": _lengths(docs.lengths[own.values])} if len(own.values) else {}),
        },
        "repeated": {
            "query": 1 - len(np.unique(catalogue.query_of[rows])) / len(rows),
            "doc": 1 - len(np.unique(catalogue.doc_of[rows])) / len(rows),
        },
        "negatives": _negatives("hard negatives a row", own.lengths),
        "dropped": dict(catalogue.pairs.dropped),
    }


def visits_summary(visits: Visits, events: torch.Tensor, titles: Sequence[str], last: int) -> dict[str, Any]:
    """The same of interactions; rows and negatives are those of one batch.

    A history is as long as what stands before an event, up to `last`; an item has as many events as it is trained on;
    negatives of a row are the items of the batch beside its own, or, where the objective asks for known positives, those that
    its user is not known to have taken.

    Args:
        events: of the batch, [b].
        titles: what items are called.
        last: events that histories are read back to.
    """
    train, count, batch = np.flatnonzero(visits.train), visits.counts, visits.batch(events)
    begin, stop = visits.timeline.histories(train)
    own = torch.ones(len(events), dtype=torch.int64) if batch.known is None else batch.known.lengths
    present = len(batch.doc) + (0 if batch.sampled is None else len(batch.sampled))
    shown = events[np.linspace(0, len(events) - 1, SHOWN).astype(int)].tolist()
    users = len(np.unique(visits.timeline.user_of(train)))
    return {
        "unit": "events",
        "rows": [_visit(visits, event, titles, last) for event in shown],
        "events": {
            "history": _lengths(torch.from_numpy(np.minimum(stop - begin, last))),
            "item": _lengths(torch.from_numpy(count[count > 0])),
        },
        "repeated": {"user": 1 - users / len(train), "item": 1 - int((count > 0).sum()) / len(train)},
        "negatives": _negatives("negatives a row, in one batch", present - own),
        "dropped": dict(visits.timeline.dropped),
    }


def _visit(visits: Visits, event: int, titles: Sequence[str], last: int) -> dict[str, Any]:
    """One event: whose, what stands before it, the latest last, and its item."""
    line = visits.timeline
    (user,), ((begin,), (stop,)) = line.user_of(np.array([event])), line.histories(np.array([event]))
    past = line.item[max(begin, stop - last) : stop].tolist()
    item = int(line.item[event])
    return {
        "place": f"user {line.user_ids[int(user)]}, event {event - begin + 1:,} of {line.lengths[user]:,}",
        "query": {"text": " | ".join(titles[i] for i in past)[-_CHARACTERS:], "events": len(past)},
        "doc": {"text": titles[item][:_CHARACTERS], "events": int(visits.counts[item])},
        "negatives": [],
    }


def _negatives(what: str, counts: torch.Tensor) -> dict[str, Any]:
    return {"what": what, "least": int(counts.min()), "mean": float(counts.double().mean()), "most": int(counts.max())}


def _shown(catalogue: Catalogue, row: int, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """One row: each role's text, and how many tokens it has."""
    query, doc = int(catalogue.query_of[row]), int(catalogue.doc_of[row])
    negatives = catalogue.negatives[row : row + 1].values.numpy()

    def text(value: str, tokens: int) -> dict[str, Any]:
        return {"text": value[:_CHARACTERS], "characters": len(value), "tokens": tokens}

    return {
        "place": catalogue.pairs.texts("place", np.array([row]))[0],
        "query": text(catalogue.queries[query], len(queries[query : query + 1].values)),
        "doc": text(catalogue.docs[doc], len(docs[doc : doc + 1].values)),
        "negatives": [
            text(words, len(docs[at : at + 1].values))
            for at, words in zip(negatives.tolist(), catalogue.docs.take(negatives))
        ],
    }


def _lengths(lengths: torch.Tensor) -> dict[str, float]:
    """Quantiles of lengths, and the share of what is at the limit.

    >>> _lengths(torch.tensor([1, 2, 4, 4]))
    {'0%': 1.0, '50%': 2.0, '90%': 4.0, '99%': 4.0, '100%': 4.0, 'at_limit': 0.5}
    """
    values = lengths.numpy()
    found = np.quantile(values, QUANTILES, method="inverted_cdf")
    longest = int((values == values.max()).sum())
    at_limit = longest / len(values) if longest > 1 else 0.0
    return {**{f"{share:.0%}": float(value) for share, value in zip(QUANTILES, found)}, "at_limit": at_limit}
