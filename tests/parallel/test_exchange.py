"""Rows that travel as columns: a batch divided and joined again is the batch."""

from __future__ import annotations

import torch

from tempera.arithmetic.ragged import Ragged
from tempera.core import pools
from tempera.core.batch import Batch, Side, divide
from tempera.core.corrections import LogQ
from tempera.core.masks import KnownPositives, SameId
from tempera.core.objective import Objective
from tempera.parallel.exchange import columns_of, join


def test_documents_that_rows_share_are_one_batch_again() -> None:
    torch.manual_seed(0)
    query = Side(
        torch.randn(7, 4, dtype=torch.float64),
        ids=torch.tensor([1, 2, 3, 1, 4, 5, 6]),
        logq=torch.randn(7),
    )
    doc = Side(
        torch.randn(4, 4, dtype=torch.float64), ids=torch.tensor([9, 8, 7, 6]), logq=torch.randn(4)
    )
    known = Ragged.of([[9], [8, 7], [], [6], [9], [8], [7]])
    whole = Batch(query, doc, known=known, answer=torch.tensor([8, 9, 6, 6, 8, 7, 9]))
    every = (pools.docs, pools.queries, pools.back_queries, pools.back_docs)
    objective = Objective(pools=every, corrections=(LogQ(),), masks=(SameId(), KnownPositives()))
    parts = [columns_of(divide(whole, part, 3)) for part in range(3)]
    joined = [join(parts, rank, None) for rank in range(3)]
    assert [len(divide(whole, part, 3).doc) for part in range(3)] == [
        1,
        1,
        2,
    ]  # apart from the rows
    torch.testing.assert_close(torch.cat([objective(batch) for batch in joined]), objective(whole))
    assert joined[0].answer is not None and torch.equal(joined[0].answers, whole.answers)
