"""The printed losses of five similarity rows, figure by figure.

The figures are those of sentence-transformers issue 3054 ("'scale' hyperparameter in
MultipleNegativesRankingLoss"): one query, its positive and three negatives, at scales 0 to 29 and
50. The first two rows are the same similarities, once as a model gave them and once as constants;
only the second is printed at scale 50.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tempera.core.batch import Batch, Side
from tempera.core.objective import Objective
from tempera.core.similarity import dot
from tempera.errors import ConfigError

# The positive first.
SIMILARITIES = {
    "model": (0.7811, 0.0835, 0.0644, 0.0639),
    "great": (0.7811, 0.0835, 0.0644, 0.0639),
    "slightly_more": (0.5842, 0.5243, 0.5351, 0.5124),
    "slightly_less": (0.4842, 0.5243, 0.5351, 0.5124),
    "low": (0.2424, 0.4243, 0.5382, 0.4244),
}
# At scales 0, 1, ... 29.
PRINTED = {
    "model": """
        1.3863 0.9059 0.5450 0.3046 0.1613 0.0825 0.0414 0.0206 0.0102 0.0050
        0.0025 0.0012 0.0006 0.0003 0.0001 0.0001 0.0000 0.0000 0.0000 0.0000
        0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000
    """,
    "great": """
        1.3863 0.9059 0.5450 0.3046 0.1613 0.0825 0.0414 0.0206 0.0102 0.0050
        0.0025 0.0012 0.0006 0.0003 0.0001 0.0001 0.0000 0.0000 0.0000 0.0000
        0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000 0.0000
    """,
    "slightly_more": """
        1.3863 1.3415 1.2974 1.2541 1.2116 1.1700 1.1291 1.0891 1.0499 1.0116
        0.9742 0.9377 0.9020 0.8673 0.8334 0.8005 0.7684 0.7373 0.7071 0.6777
        0.6493 0.6218 0.5952 0.5694 0.5445 0.5205 0.4973 0.4750 0.4534 0.4327
    """,
    "slightly_less": """
        1.3863 1.4163 1.4466 1.4773 1.5083 1.5397 1.5714 1.6035 1.6359 1.6686
        1.7016 1.7349 1.7686 1.8026 1.8368 1.8714 1.9062 1.9413 1.9767 2.0124
        2.0484 2.0846 2.1211 2.1578 2.1948 2.2320 2.2695 2.3072 2.3451 2.3833
    """,
    "low": """
        1.3863 1.5567 1.7378 1.9288 2.1289 2.3376 2.5539 2.7774 3.0073 3.2431
        3.4842 3.7302 3.9807 4.2352 4.4934 4.7550 5.0197 5.2873 5.5575 5.8301
        6.1049 6.3816 6.6602 6.9405 7.2223 7.5054 7.7898 8.0754 8.3619 8.6494
    """,
}
AT_50 = {"great": "0.0000", "slightly_more": "0.1514", "slightly_less": "3.2294", "low": "14.7967"}
FIGURES = [
    (row, scale, figure)
    for row, text in PRINTED.items()
    for scale, figure in enumerate(text.split())
]
FIGURES += [(row, 50, figure) for row, figure in AT_50.items()]


def batch(similarities: tuple[float, ...], dtype: torch.dtype) -> Batch[Tensor]:
    """One query, its document and three hard negatives of its own, whose inner products are the
    similarities."""
    rows = torch.tensor(similarities, dtype=dtype)[:, None] * torch.tensor(
        [[1.0, 0.0]], dtype=dtype
    )  # [4, 2]
    query = torch.tensor([[1.0, 0.0]], dtype=dtype)
    return Batch(
        Side(query), Side(rows[:1]), negatives=Side(rows[1:], owner=torch.tensor([0, 0, 0]))
    )


def loss_at(
    scale: float, similarities: tuple[float, ...], dtype: torch.dtype = torch.float64
) -> float:
    """Tempera's loss of one row."""
    return float(Objective(similarity=dot, temperature=1 / scale)(batch(similarities, dtype)))


def definition(scale: float, similarities: tuple[float, ...]) -> float:
    """The negative log of the positive's share, in plain Python."""
    return math.log(sum(math.exp(scale * s) for s in similarities)) - scale * similarities[0]


def misprinted(loss: Callable[[float, tuple[float, ...]], float], first: int = 1) -> list[str]:
    """The figures that a loss does not reproduce to 4 decimals."""
    losses = [
        (row, s, figure, loss(s, SIMILARITIES[row])) for row, s, figure in FIGURES if s >= first
    ]
    return [
        f"{row} at {s}: {value:.6f}, not {figure}"
        for row, s, figure, value in losses
        if f"{value:.4f}" != figure
    ]


def test_the_table_is_whole() -> None:
    assert len(FIGURES) == 5 * 30 + 4
    assert {row: len(text.split()) for row, text in PRINTED.items()} == dict.fromkeys(
        SIMILARITIES, 30
    )


def test_the_definition_gives_the_printed_figures() -> None:
    assert misprinted(definition, first=0) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_objective_gives_the_printed_figures(dtype: torch.dtype) -> None:
    assert misprinted(lambda scale, row: loss_at(scale, row, dtype)) == []


def test_a_wrong_scale_would_be_seen() -> None:
    assert len(misprinted(lambda scale, row: loss_at(scale * 1.01, row))) > 80


def test_scale_0_is_the_limit_in_which_nothing_is_learned() -> None:
    """Every logit is 0, so the loss is the log of the four candidates and no embedding has a
    gradient."""
    for row, similarities in SIMILARITIES.items():
        assert (
            PRINTED[row].split()[0] == f"{math.log(4):.4f}" == f"{loss_at(1e-9, similarities):.4f}"
        )
    given = batch(SIMILARITIES["low"], torch.float64)
    leaf = given.query.rows.requires_grad_()
    Objective(similarity=dot, temperature=1e9)(given).sum().backward()
    assert leaf.grad is not None and float(leaf.grad.abs().max()) < 1e-9


def test_scale_0_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"scale of 0, makes every logit 0 .* nothing can be learned"
    ):
        Objective(temperature=math.inf)


def test_the_trainer_refuses_scale_0_with_the_reason(tempera, tmp_path) -> None:
    answer = tempera("train", "objective.scale=0", "--output", tmp_path / "run")
    assert answer.code == 2
    assert answer.out == "" and answer.err.count("\n") == 1
    assert answer.err.startswith("tempera: objective.scale: 0:")
    assert (
        "every loss log(candidates) whatever the embeddings, so nothing can be learned"
        in answer.err
    )
    assert "(command line)" in answer.err
    assert list(tmp_path.iterdir()) == []
