"""A teacher's distribution over a row's candidates, which the student's is drawn to.

Letters in shapes: b rows, c candidates, T width of the teacher's vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import ConfigError, DataError
from . import pools as P
from .similarity import exact
from .temperature import refuse_temperature

OVER = (P.docs, P.negatives, P.sampled, P.queries, P.back_queries, P.back_docs)


@dataclass(frozen=True)
class Teacher:
    """Draw the student's softmax over a row's candidates to that of a teacher's similarities (Hinton et al. 2015).

    For anchor a, the query or the document of a row, and the candidates c that the pools give it, the anchor itself apart,

        P_ac = softmax_c( teacher(a, c) / temperature ),    Q_ac = softmax_c( s_ac / student_temperature )
        KL_a = sum_c P_ac (log P_ac - log Q_ac)
        loss_i = (1 - weight) contrastive_i + weight * mean over the row's anchors of KL_a

    A candidate that a mask leaves out is in neither softmax: the teacher's is renormalised without it. Sampling corrections
    (`LogQ`) are added to both; `Hardness`, `Margin` and `hardest` are of the contrastive loss alone. An anchor without
    candidates has loss 0. Needs `Side.teacher`, the teacher's unit vectors of every side.

    Args:
        weight: share of the teacher in the loss, from 0 to 1. At 1 no pair is needed: rows may be any two texts.
        final: its share at the end of training; None is `weight`.
        turn: share of the steps after which `final` holds; None moves from one to the other evenly over all steps.
        temperature: of the teacher's softmax, in units of its cosine.
        student_temperature: of the student's; None is the teacher's, at which a student with its similarities has loss 0.
        pools: the candidates of each anchor. By default every query and document of the batch is compared with every other.

    Raises:
        ConfigError: a weight or a turn outside of [0, 1], a temperature of 0 or below, no pools.
        DataError: a side without the teacher's vectors.

    >>> import torch
    >>> from tempera import Batch, Objective, Side
    >>> vectors = torch.eye(3)  # of the student and of the teacher, which agree
    >>> sides = [Side(vectors, teacher=vectors) for _ in range(2)]
    >>> Objective(teacher=Teacher(weight=1.0))(Batch(*sides)).tolist()
    [0.0, 0.0, 0.0]
    """

    weight: float = 0.5
    final: float | None = None
    turn: float | None = None
    temperature: float = 0.05
    student_temperature: float | None = None
    pools: Sequence[P.Pool] = OVER

    def __post_init__(self) -> None:
        for name in ("weight", "final", "turn"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"teacher: {name} is a share from 0 to 1, not {value}")
        for temperature in (self.temperature, self.student_temperature):
            if temperature is not None:
                refuse_temperature(temperature)
        if not self.pools:
            raise ConfigError("teacher: no pools, so there is nothing to compare; leave pools out to compare all")

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
        return 1 / (self.student_temperature or self.temperature), 1 / self.temperature

    def vectors(self, block: P.Block) -> tuple[Tensor, Tensor]:
        """Return the teacher's vectors of the anchors, [b, T], and of the candidates, [c, T]."""
        anchors, candidates = (self._of(block, role) for role in (block.anchor, block.candidate))
        local = block.batch.local
        if block.anchor == "doc" and block.batch.answer is not None:
            return anchors[block.batch.answers[local].to(anchors.device)], candidates
        return anchors[local], candidates

    def _of(self, block: P.Block, role: str) -> Tensor:
        vectors = getattr(block.batch, role).teacher
        if vectors is None:
            raise DataError(
                f"a teacher needs its vectors of every side, and {role} has none: give teacher= (of a run, train.teacher=MODEL)"
            )
        return exact(vectors)
