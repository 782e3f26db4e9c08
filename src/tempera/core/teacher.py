"""A teacher beside the pairs or in their place: its comparisons of a row's candidates, or its
vectors, which the student learns.

Letters in shapes: b rows, c candidates, k candidates of a row's list, D width of the embeddings, T
    of the teacher's vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, refuse_unknown
from . import pools as P
from .abilities import placed, sent
from .batch import Batch, Role
from .similarity import exact, scaled
from .temperature import refuse_temperature

OVER = (P.docs, P.negatives, P.sampled, P.queries, P.back_queries, P.back_docs)
OWN = (P.docs, P.negatives)
_COSINES, _LOGITS = 0.05, 1.0  # temperatures that fit cosines, and a cross-encoder's scores


@dataclass(frozen=True)
class Teacher:
    """Draw the student to a teacher: to its comparisons of a row's candidates, or to its vectors.

    For anchor a, the query or the document of a row, and the candidates c that it is compared with,
    the anchor itself apart,

        u_ac = s_ac / student_temperature,    v_ac = teacher(a, c) / temperature
        kl:          sum_c P_ac (log P_ac - log Q_ac),  P_a = softmax_c(v_ac), Q_a = softmax_c(u_ac)   (Hinton et al. 2015)
        margin_mse:  mean over c but the positive p of ((u_ap - u_ac) - (v_ap - v_ac))^2   (Hofstaetter et al. 2020, eq. 2)
        align:       mean over the row's query, document and own negatives x of 1 - cos(A x, teacher(x))

        loss_i = (1 - weight) contrastive_i + weight * mean over the row's anchors of the above

    A candidate that a mask leaves out, an own negative too, is in no comparison: the teacher's
    softmax is renormalised without it, and the mean of margin_mse is over the others. An anchor
    without candidates has loss 0, as has a row without negatives over its own list. Sampling
    corrections (`LogQ`) are added to u and v over pools, where margin_mse takes them off again;
    `Hardness`, `Margin` and `hardest` are of the contrastive loss alone. Masks do not concern
    align.

    The temperatures are units: at temperature 1 and student_temperature 0.05, a difference of 0.05
    in the student's cosine is one of 1 in a cross-encoder's logits; with 1 for both and similarity
    `dot`, margin_mse is the paper's.

    A is the identity where embeddings and the teacher's vectors have one width, and else a linear
    map, [T, D], which the objective makes in `Objective.settle` and learns; a width of `Matryoshka`
    has its first columns.

    Args:
        weight: share of the teacher in the loss, from 0 to 1. At 1 no pair is needed: rows may be
            any two texts, unless the teacher compares by margin_mse or over rows' own lists.
        final: its share at the end of training; None is `weight`.
        turn: share of the steps after which `final` holds; None moves from one to the other evenly
            over all steps.
        loss: kl, margin_mse or align.
        by: "vectors" compares by `Side.teacher`, unit vectors of every side; "scores" by
            `Side.score`, scores of each query with its own document and its own negatives, such as
            a cross-encoder's.
        over: "pools" compares each anchor with all candidates of `pools`, "own" each query with its
            own document and its own negatives alone; None is own by scores and for margin_mse, and
            pools otherwise.
        temperature: of the teacher, in units of its cosine or score; None is 0.05 by vectors and 1
            by scores.
        student_temperature: of the student; None is the teacher's by vectors, at which a student
            with its similarities has loss 0, and 0.05 by scores.
        pools: the candidates of each anchor. By default every query and document of the batch is
            compared with every other.

    Raises:
        ConfigError: a weight or a turn outside of [0, 1], a turn without `final`, an unknown loss,
            by or over, a temperature of 0 or below, no pools, pools of rows' own lists, scores over
            pools or to align, align with `over` or a temperature, margin_mse over pools that do not
            hold the positive of each anchor.
        DataError: a side without the teacher's vectors, or rows without its scores.

    >>> import torch
    >>> from tempera import Batch, Objective, Side
    >>> vectors = torch.eye(3)  # of the student and of the teacher, which agree
    >>> sides = [Side(vectors, teacher=vectors) for _ in range(2)]
    >>> [Objective(teacher=Teacher(1.0, loss=loss))(Batch(*sides)).tolist() for loss in ("kl", "align")]
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    >>> query, doc = Side(vectors, score=torch.tensor([9.0, 9.0, 9.0])), Side(vectors)
    >>> negative = Side(vectors[1:2], owner=torch.tensor([0]), score=torch.tensor([4.0]))  # of row 0: cosine 0, not 1
    >>> Objective(teacher=Teacher(1.0, loss="margin_mse", by="scores"))(Batch(query, doc, negative)).tolist()
    [225.0, 0.0, 0.0]
    """

    weight: float = 0.5
    final: float | None = None
    turn: float | None = None
    loss: Literal["kl", "margin_mse", "align"] = "kl"
    by: Literal["vectors", "scores"] = "vectors"
    over: Literal["pools", "own"] | None = None
    temperature: float | None = None
    student_temperature: float | None = None
    pools: Sequence[P.Pool] = OVER

    def __post_init__(self) -> None:
        refuse_unknown("teacher: loss", self.loss, "kl", "margin_mse", "align")
        refuse_unknown("teacher: by", self.by, "vectors", "scores")
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
        unread = [
            name
            for name in ("over", "temperature", "student_temperature")
            if getattr(self, name) is not None
        ]
        if self.loss == "align" and unread:
            raise ConfigError(
                f"teacher: align compares no candidates and has no temperature: drop {', '.join(unread)}"
            )
        if not self.pools:
            raise ConfigError(
                "teacher: no pools, so there is nothing to compare; leave pools out to compare all"
            )
        if self.by == "scores" and (self.loss == "align" or not self.own):
            wanted = (
                "align needs vectors: use by: vectors" if self.loss == "align" else "use over: own"
            )
            raise ConfigError(
                f"teacher: scores are of each row's own document and negatives; {wanted}"
            )
        if self.own and tuple(self.pools) != OVER:
            raise ConfigError(
                "teacher: rows' own lists have no pools: drop pools, or set over: pools"
            )
        P.refuse_twice(self.compared)
        blocks = [block for pool in self.compared for block in pool.blocks]
        held = {anchor for anchor, candidate in blocks if P.holds_positive(anchor, candidate)}
        if self.loss == "margin_mse" and held < {anchor for anchor, _ in blocks}:
            raise ConfigError(
                "teacher: margin_mse needs the positive of each anchor: add docs or back_queries to pools"
            )

    @property
    def own(self) -> bool:
        """Return True if a row's own document and negatives are compared alone."""
        return self.over == "own" or (
            self.over is None and (self.by == "scores" or self.loss == "margin_mse")
        )

    @property
    def compared(self) -> Sequence[P.Pool]:
        """Return the pools whose candidates are compared, all of them or a row's own."""
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
        scores = self.by == "scores"
        temperature = self.temperature or (_LOGITS if scores else _COSINES)
        return 1 / (
            self.student_temperature or (_COSINES if scores else temperature)
        ), 1 / temperature

    def logits(self, block: P.Block, lists: Tensor | None) -> Callable[[slice], Tensor]:
        """Return the teacher's logits of a tile of anchors: with all candidates, [tile, c], or with
        those of lists, [tile, k]."""
        local, scale = block.batch.local, self.scales[1]
        if self.by == "scores":
            scores = self._of(block.batch, "query" if block.paired else block.candidate, "score")
            listed = scores[local][:, None] if block.paired else scores[lists]
            return lambda tile: listed[tile] * scale
        anchors, candidates = (
            self._of(block.batch, role, "teacher") for role in (block.anchor, block.candidate)
        )
        places = block.anchor_rows
        anchors = anchors[local] if places is None else anchors[sent(places, anchors.device)]
        if lists is None:
            return lambda tile: (anchors[tile] * scale) @ candidates.T
        return lambda tile: (candidates[lists[tile]] @ (anchors[tile] * scale)[:, :, None])[:, :, 0]

    def alignment(self, batch: Batch[Tensor], matrix: Tensor | None) -> Tensor:
        """Return what `align` is for this device's rows, [b], differentiable for the embeddings and
        the matrix.

        Args:
            matrix: A, [T, at least D]; None is the identity.
        """
        local = batch.local
        rows = torch.arange(local.stop - local.start)
        texts: list[tuple[Role, Tensor, Tensor]] = [
            ("query", rows + local.start, rows),
            ("doc", batch.answers[local], rows),
        ]
        if batch.negatives is not None and batch.negatives.owner is not None:
            owner = batch.negatives.owner.cpu() - local.start
            mine = ((owner >= 0) & (owner < len(rows))).nonzero()[:, 0]
            texts.append(("negatives", mine, owner[mine]))
        device = batch.doc.rows.device
        distances = [self._distance(batch, role, sent(at, device), matrix) for role, at, _ in texts]
        row = torch.cat([row for _, _, row in texts])
        share = 1 / torch.bincount(row, minlength=len(rows)).double()[row]
        weighted = torch.cat(distances) * placed(share, distances[0])
        return weighted.new_zeros(len(rows)).index_add(0, sent(row, device), weighted)

    def _distance(
        self, batch: Batch[Tensor], role: Role, at: Tensor, matrix: Tensor | None
    ) -> Tensor:
        """Return 1 - cos(A x, teacher(x)) of chosen rows of a role, [k]; 1 for an embedding of
        length 0."""
        x, vectors = exact(getattr(batch, role).rows)[at], self._of(batch, role, "teacher")[at]
        if matrix is not None:
            x = x @ placed(matrix[:, : x.shape[1]], x).T
        if x.shape[1] != vectors.shape[1]:
            raise DataError(
                f"a teacher aligns embeddings of width {x.shape[1]} with vectors of width {vectors.shape[1]}: give the "
                "objective both widths, Objective.settle(width, teacher_width)"
            )
        x, sizes, _ = scaled(x)
        distance: Tensor = 1 - torch.linalg.vecdot(x, vectors.to(x.dtype)) / sizes[:, 0]
        return distance

    def _of(self, batch: Batch[Tensor], role: str, field: str) -> Tensor:
        values: Tensor | None = getattr(getattr(batch, role), field)
        if values is not None:  # products in float64 where the embeddings are, as in a proof
            return values.to(
                torch.promote_types(exact(values).dtype, exact(batch.doc.rows[:0]).dtype)
            )
        if field == "score":
            raise DataError(
                f"a teacher by scores needs them of each pair and of its negatives, and {role} has none: give score= "
                "(of a run, train.teacher=CROSS_ENCODER or columns)"
            )
        raise DataError(
            f"a teacher needs its vectors of every side, and {role} has none: give teacher= (of a run, train.teacher=MODEL)"
        )
