"""A teacher beside the pairs or in their place: the student learns its comparisons of a row's
candidates.

Letters in shapes: c candidates, k candidates of a row's list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..arithmetic.abilities import sent
from ..errors import ConfigError, DataError, refuse_unknown
from . import pools as P
from .batch import Batch, Role
from .similarity import exact
from .temperature import refuse_temperature

OVER = (P.docs, P.negatives, P.sampled, P.queries, P.back_queries, P.back_docs)
OWN = (P.docs, P.negatives)
TEMPERATURE = 0.05  # fits cosines


@dataclass(frozen=True)
class Teacher:
    """Draw the student to a teacher's comparisons of a row's candidates.

    For anchor a, the query or the document of a row, and its candidates c, the anchor itself apart,

        u_ac = s_ac / student_temperature,    v_ac = teacher(a, c) / temperature
        KL_a = sum_c P_ac (log P_ac - log Q_ac),  P_a = softmax_c(v_ac), Q_a = softmax_c(u_ac)   (Hinton et al. 2015)

        loss_i = (1 - weight) contrastive_i + weight * mean over the row's anchors of KL_a

    where teacher(a, c) is the product of the unit vectors `Side.teacher` of a and c. A candidate
    that a mask leaves out, an own negative too, is in no comparison: the teacher's softmax is
    renormalised without the candidate. An anchor without candidates has loss 0, as has a row without
    negatives over its own list. Sampling corrections (`LogQ`) are added to u and v over pools; `Hardness`, `Margin` and
    `hardest` are of the contrastive loss alone.

    Args:
        weight: share of the teacher in the loss, from 0 to 1. At 1 no pair is needed: rows may be
            any two texts, unless the teacher compares rows' own lists.
        final: the weight at the end of training; None is `weight`.
        turn: share of the steps after which `final` holds; None moves from `weight` to `final`
            evenly over all steps.
        over: "pools" compares each anchor with all candidates of `pools`, "own" each query with its
            own document and its own negatives alone; None is pools.
        temperature: of the teacher, in units of its cosine; None is 0.05.
        student_temperature: of the student; None is the teacher's, at which a student with its
            similarities has loss 0.
        pools: the candidates of each anchor. By default every query and document of the batch is
            compared with every other.

    Raises:
        ConfigError: a weight or a turn outside of [0, 1], a turn without `final`, an unknown
            `over`, a temperature of 0 or below, no pools, or pools of rows' own lists.
        DataError: a side without the teacher's vectors.

    >>> import torch
    >>> from tempera import Batch, Objective, Side
    >>> vectors = torch.eye(3)  # of the student and of the teacher, which agree
    >>> sides = [Side(vectors, teacher=vectors) for _ in range(2)]
    >>> Objective(teacher=Teacher(1.0))(Batch(*sides)).tolist()
    [0.0, 0.0, 0.0]
    """

    weight: float = 0.5
    final: float | None = None
    turn: float | None = None
    over: Literal["pools", "own"] | None = None
    temperature: float | None = None
    student_temperature: float | None = None
    pools: Sequence[P.Pool] = OVER

    def __post_init__(self) -> None:
        if self.over is not None:
            refuse_unknown("teacher: over", self.over, "pools", "own")
        for name in ("weight", "final", "turn"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"teacher: {name} is a share from 0 to 1, not {value}")
        if self.turn is not None and self.final is None:
            raise ConfigError(
                "teacher: turn is the moment from which final holds: give final, or drop turn"
            )
        for temperature in (self.temperature, self.student_temperature):
            if temperature is not None:
                refuse_temperature(temperature)
        if not self.pools:
            raise ConfigError(
                "teacher: no pools, so there is nothing to compare; leave pools out to compare all"
            )
        if self.own and tuple(self.pools) != OVER:
            raise ConfigError(
                "teacher: rows' own lists have no pools: drop pools, or set over: pools"
            )
        P.refuse_twice(self.compared)

    @property
    def own(self) -> bool:
        """Return True if only a row's own document and negatives are compared."""
        return self.over == "own"

    @property
    def compared(self) -> Sequence[P.Pool]:
        """Return the pools whose candidates are compared: all candidates, or a row's own."""
        return OWN if self.own else self.pools

    def share(self, progress: float) -> float:
        """Return the weight after a share of the training, from 0 to 1.

        >>> Teacher(weight=1.0, final=0.0).share(0.25), Teacher(weight=1.0, final=0.0, turn=0.5).share(0.25)
        (0.75, 1.0)
        """
        if self.final is None:
            return self.weight
        if self.turn is None:
            return self.weight + (self.final - self.weight) * progress
        return self.weight if progress < self.turn else self.final

    @property
    def scales(self) -> tuple[float, float]:
        """Return 1/t of the student and of the teacher."""
        temperature = self.temperature or TEMPERATURE
        student_temperature = self.student_temperature or temperature
        return 1 / student_temperature, 1 / temperature

    def logits(self, block: P.Block, lists: Tensor | None) -> Callable[[slice], Tensor]:
        """Return the teacher's logits v by tile of anchors: of all candidates, [tile, c], or of the
        candidates of lists, [tile, k]."""
        scale = self.scales[1]
        anchors = _vectors(block.batch, block.anchor)
        candidates = _vectors(block.batch, block.candidate)
        anchor_rows: slice | Tensor = block.batch.local
        if block.anchor_rows is not None:
            anchor_rows = sent(block.anchor_rows, anchors.device)
        anchors = anchors[anchor_rows]

        def of_all(tile: slice) -> Tensor:
            return (anchors[tile] * scale) @ candidates.T

        def of_lists(tile: slice) -> Tensor:
            assert lists is not None
            return (candidates[lists[tile]] @ (anchors[tile] * scale)[:, :, None])[:, :, 0]

        return of_all if lists is None else of_lists


def _vectors(batch: Batch[Tensor], role: Role) -> Tensor:
    """Return the teacher's vectors of a role; in float64 where the embeddings are float64, as in a
    proof."""
    values: Tensor | None = getattr(batch, role).teacher
    if values is None:
        raise DataError(
            f"a teacher needs its vectors of every side, and {role} has none: give teacher= (of a run, train.teacher=MODEL)"
        )
    rows = exact(batch.doc.rows[:0])
    return values.to(torch.promote_types(exact(values).dtype, rows.dtype))
