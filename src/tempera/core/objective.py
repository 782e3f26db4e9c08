"""The objective: cross entropy of the positive against all candidates of the pools.

For row i with positive similarity s+, temperature t, and unmasked candidates c of the pools,

    loss_i = log sum_c exp(s_ic / t + corrections_ic) - (s+_i / t + corrections_i+)

The parts are independent, and every combination of parts runs through the same tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from ..arithmetic.abilities import placed, sent
from ..arithmetic.derivatives import backward, differentiable_once
from ..errors import ConfigError, DataError, article, is_whole, refuse_other, refuse_unknown
from . import pools as P
from .batch import Batch, Role, as_batch, kind_of
from .corrections import Addition, Correction
from .masks import KnownPositives, Mask, SameId
from .matches import Listed, Matches
from .memory import Memory
from .row_losses import Numerator
from .similarity import Similarity, cosine, exact
from .teacher import Teacher
from .temperature import Temperature
from .tiles import LossPass, Problem, Softmax, Term, Vectors, tile_elements, tile_losses

Pair = tuple[Role, Role]  # the anchors and the candidates of a block


class Objective(nn.Module):
    """Contrastive losses of a batch, one number a row. Presets choose these parts for methods with
    a name.

    Args:
        similarity: `cosine` or `dot`.
        temperature: a number, or a `Temperature` (which may follow a schedule or learn).
        pools: the candidates of the denominator; one pool must hold the positive (docs, or
            back_queries). A pool without rows in the batch is empty.
        corrections: terms added to the logits.
        masks: candidates to leave out; never a row's own positive. A row without any negative left
            has loss 0, or log 2 where one softmax holds the positive in both directions (`gte`).
        partition: "joint" is one softmax over all pools; "per_direction" averages a softmax for
            each direction.
        numerator: "one" is the row's own positive; with several known positives of a query in the
            batch (by equal ids, or `Batch.known`), "mean" takes the mean of the log-probabilities
            (Khosla et al. 2020, eq. 2) and "sum" the log of the summed probability (Miech et al.
            2020, eq. 1).
        hardest: number of highest negatives to keep for each row; None keeps all.
        memory: a queue of past documents for the pool `memory`.
        teacher: a `Teacher` of distributions to learn beside the pairs, or in place of the pairs.
        tile_elements: scores held at once, a matter of speed and memory only; None is 2^20 on a
            CPU, and as many as fit a sixteenth of the free memory on an accelerator, measured once.

    Raises:
        ConfigError: parts that do not go together.
        DataError: a part needs data, such as ids, missing in the batch.

    >>> queries, documents = torch.eye(3, requires_grad=True), torch.eye(3)  # [b, D] each, row i is a pair
    >>> losses = Objective(temperature=1.0)(queries, documents)  # [b]
    >>> print([round(loss, 4) for loss in losses.tolist()])
    [0.5514, 0.5514, 0.5514]
    >>> losses.mean().backward()
    """

    def __init__(
        self,
        similarity: Similarity = cosine,
        temperature: float | Temperature = 0.05,
        pools: Sequence[P.Pool] = (P.docs, P.negatives, P.sampled),
        corrections: Sequence[Correction] = (),
        masks: Sequence[Mask] = (),
        partition: Literal["joint", "per_direction"] = "joint",
        numerator: Numerator = "one",
        hardest: int | None = None,
        memory: Memory | None = None,
        teacher: Teacher | None = None,
        tile_elements: Annotated[int, Field(gt=0)] | None = None,
    ) -> None:
        super().__init__()
        _refuse_parts(similarity, pools, corrections, masks)
        _refuse_numbers(hardest, tile_elements)
        if not isinstance(temperature, Temperature):
            temperature = Temperature(temperature)
        self.similarity = similarity
        self.temperature = temperature
        self.pools = tuple(pools)
        self.corrections = tuple(corrections)
        self.masks = tuple(masks)
        self.partition = partition
        self.numerator = numerator
        self.hardest = hardest
        self.memory = memory
        self.teacher = teacher
        self.tile_elements = tile_elements
        self.progress = 0.0  # of the training, from 0 to 1, which the teacher's weight may follow
        # Computes losses and gradients of a problem; a device may have another way to them.
        self.loss_pass: LossPass = tile_losses
        # Scores of a tile by type of device, as measured; a checkpoint keeps them.
        self.tiles: dict[str, int] = {}
        refuse_unknown("partition", partition, "joint", "per_direction")
        refuse_unknown("numerator", numerator, *get_args(Numerator))
        if hardest is not None and hardest < 1:
            raise ConfigError(f"hardest keeps at least 1 negative and is {hardest}; None keeps all")
        if tile_elements is not None and tile_elements < 1:
            raise ConfigError(
                f"tile_elements is at least 1 and is {tile_elements}; None takes what fits the device"
            )
        if (memory is not None) != (P.memory in self.pools):
            raise ConfigError("a memory and the pool memory go together: give both or neither")
        P.refuse_twice(self.pools)
        self._refuse_without_positive()

    def _refuse_without_positive(self) -> None:
        """Raise ConfigError for a softmax whose pools do not hold the positive."""
        advice = "choose partition joint"
        if self.partition == "joint":
            advice = "add docs or back_queries to pools"
        for name, blocks in (self._groups() or {"no pools": []}).items():
            if not any(P.holds_positive(*pair) for pair in blocks):
                raise ConfigError(
                    f"no pool holds the positive of the softmax over {name}: {advice}"
                )

    @property
    def asks_known(self) -> bool:
        """Return True if `Batch.known` makes a difference."""
        if self.numerator != "one":
            return True
        return any(isinstance(mask, KnownPositives) for mask in self.masks)

    @property
    def uses_negatives(self) -> bool:
        """Return True if hard negatives are candidates of a pool."""
        return any(candidate == "negatives" for pool in self.pools for _, candidate in pool.blocks)

    def forward(self, queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Tensor:
        """Return one loss a row, [b], differentiable for every embedding and the temperature.

        A memory grows by `remember`, to be called after the step.

        Train on the `.mean()` of the losses. The losses do not hold the weights of a batch: with
        weights, train on `(batch.shares() * losses).sum()`.

        Args:
            queries: embeddings, [b, D]; or a `Batch`, with negatives, ids and weights; the losses
                are of this device's rows.
            documents: embeddings, [b, D]; row i answers query i. None with a `Batch`.
        """
        batch = as_batch(queries, documents)
        if batch.memory is None:
            batch = self.recall(batch)
        sides = batch.sides()
        roles = tuple(sides)
        rows = [side.rows for side in sides.values()]
        losses: Tensor = _Losses.apply(self, self.problem(batch), roles, self.scale(batch), *rows)  # type: ignore[no-untyped-call]
        return losses

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Return the losses, [b], and add the gradients of sum(shares * losses) to `.grad`, in one
        pass over the scores.

        Gradients reach every embedding with `requires_grad`, and a learnable temperature unless the
        batch has a temperature of its own.
        """
        scale = self.scale(batch)
        rows = {role: side.rows for role, side in batch.sides().items()}
        with torch.no_grad(), autocast_off(batch.doc.rows):
            problem = self.problem(batch)
            vectors = self._vectors(rows)
            shares = placed(shares, vectors["query"])
            losses, grads = self.loss_pass(
                problem, vectors, float(scale), shares, scale.requires_grad
            )
            assert grads is not None
            reached = []
            pulled = []
            for role, side in rows.items():
                if side.requires_grad:
                    grad = self.similarity.pullback(side, vectors[role], grads.vectors[role])
                    reached.append(side)
                    pulled.append(grad)
        backward(reached, pulled)
        if scale.requires_grad:
            self.temperature.receive(grads.scale)
        return losses

    @torch.no_grad()
    def contrastive_losses(self, batch: Batch[Tensor]) -> Tensor:
        """Return the losses without a teacher's part and without gradient, [b]."""
        problem = self.problem(batch, taught=False)
        rows = {role: side.rows for role, side in batch.sides().items()}
        with autocast_off(batch.doc.rows):
            scale = float(self.scale(batch))
            return self.loss_pass(problem, self._vectors(rows), scale, None, False)[0]

    def _vectors(self, rows: Vectors) -> Vectors:
        """Return the vectors of embeddings: the similarities are inner products of the vectors."""
        return {role: self.similarity.vectors(side) for role, side in rows.items()}

    def scale(self, batch: Batch[Tensor]) -> Tensor:
        """Return 1/t of a batch: by its own temperature, or by the objective's."""
        if batch.temperature is None:
            return self.temperature.scale()
        return torch.tensor(1 / batch.temperature, dtype=torch.float64)

    def advance(self, progress: float) -> None:
        """Follow the schedules of temperature and teacher to a share of the run, from 0 to 1."""
        self.temperature.advance(progress)
        self.progress = progress

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """Return the batch with the documents of the memory, if any."""
        if self.memory is None:
            return batch
        side = self.memory.side()
        if side is not None:
            side = side.to(batch.doc.rows.device)
        return replace(batch, memory=side)

    def remember(self, batch: Batch[Tensor]) -> None:
        """Put the batch's documents into the memory, if any; to be called after the step."""
        if self.memory is not None:
            self.memory.push(batch.doc)

    def tile_size(self, device: torch.device) -> int:
        """Return the number of scores of a tile on a device, the same in all batches."""
        if self.tile_elements is None and device.type not in self.tiles:
            self.tiles[device.type] = tile_elements(device)
        return self.tile_elements or self.tiles[device.type]

    def _groups(self) -> dict[str, list[Pair]]:
        """Return the blocks of each softmax over the pools."""
        groups: dict[str, list[Pair]] = {}
        for pool in self.pools:
            for pair in pool.blocks:
                name = P.direction(*pair) if self.partition == "per_direction" else "all pools"
                groups.setdefault(name, []).append(pair)
        return groups

    def problem(self, batch: Batch[Tensor], taught: bool = True) -> Problem:
        """Return the softmaxes of a batch: the parts of the objective, bound to its rows.

        Args:
            taught: False leaves the teacher out.
        """
        _refuse_embeddings(batch)
        _refuse_vectors(batch)
        weight = 0.0
        if self.teacher is not None and taught:
            weight = self.teacher.share(self.progress)
        groups = self._contrastive(batch, 1 - weight)
        if self.teacher is not None and weight:
            groups += self._teaching(self.teacher, batch, weight)
        tile = self.tile_size(batch.doc.rows.device)
        return Problem(tuple(groups), batch.local, self.hardest, self.numerator, tile)

    def _contrastive(self, batch: Batch[Tensor], weight: float) -> list[Softmax]:
        """Return the softmaxes with positives as targets; none if a teacher has the whole
        weight."""
        if not weight:
            return []
        groups = self._groups()
        softmaxes = []
        for pairs in groups.values():
            terms: list[Term] = []
            is_held = False
            for block in _present(batch, pairs):
                others: tuple[Matches, ...] = ()
                if not is_held:  # the loss is about the first term with positives
                    others = self.others(block)
                term = self._contrastive_term(block, others)
                is_held = is_held or term.positive is not None
                terms.append(term)
            softmaxes.append(Softmax(tuple(terms), weight / len(groups)))
        return softmaxes

    def _contrastive_term(self, block: P.Block, others: tuple[Matches, ...]) -> Term:
        positive = block.positive
        if positive is not None and not others:
            positive = sent(positive, block.device)
        additions = [correction(block) for correction in self.corrections]
        return self._term(block, positive, additions, block.own_kind, others)

    def _teaching(self, teacher: Teacher, batch: Batch[Tensor], weight: float) -> list[Softmax]:
        """Return the softmaxes with the teacher's targets, a softmax for each kind of anchor."""
        by_anchor: dict[Role, list[Pair]] = {}
        for pool in teacher.compared:
            for pair in pool.blocks:
                by_anchor.setdefault(pair[0], []).append(pair)
        present = []
        for pairs in by_anchor.values():
            blocks = _present(batch, pairs)
            if blocks:
                present.append(blocks)
        softmaxes = []
        for blocks in present:
            if teacher.own:
                terms = [self._own_list_term(teacher, block) for block in blocks]
            else:
                terms = [self._taught_term(teacher, block) for block in blocks]
            share = weight / len(present)
            softmaxes.append(Softmax(tuple(terms), share, True, teacher.scales[0]))
        return softmaxes

    def _taught_term(self, teacher: Teacher, block: P.Block) -> Term:
        """Return the term of a block, with the teacher's distribution over all candidates as
        target.

        Of the corrections, the student's and the teacher's logits both have the addend of every
        candidate, and nothing else.
        """
        positive = block.positive
        if positive is not None:
            positive = sent(positive, block.device)
        additions = []
        for correction in self.corrections:
            candidate = correction(block).candidate
            if candidate is not None:
                additions.append(Addition(candidate=candidate))
        term = self._term(block, positive, additions, block.itself)
        return replace(term, teacher=teacher.logits(block, None))

    def _own_list_term(self, teacher: Teacher, block: P.Block) -> Term:
        """Return the term of a block, with the teacher's distribution over each row's own
        candidates as target. Own candidates are not sampled, so nothing corrects the logits."""
        columns = sent(block.lists, block.device)
        filling = columns < 0
        lists = columns.clamp_min(0)
        positive = None
        if block.positive is not None:
            positive = torch.zeros_like(block.positive, device=block.device)
        term = self._term(block, positive, (), ())
        count = len(block.candidates)
        exclusions = [P.within(exclusion, lists, count) for exclusion in term.exclusions]
        # Last: the answer of a mask for a column that fills up a list is nothing to the row.
        exclusions.append(filling.__getitem__)
        return replace(
            term,
            exclusions=tuple(exclusions),
            lists=lists,
            teacher=teacher.logits(block, lists),
        )

    def others(self, block: P.Block) -> tuple[Matches, ...]:
        """Return the positives of other rows that the numerator counts with each row's own."""
        if self.numerator == "one" or block.positive is None:
            return ()
        others = SameId()(block)
        if block.batch.known is not None:
            others += KnownPositives().matches(block)
        return others

    def _term(
        self,
        block: P.Block,
        positive: Tensor | None,
        additions: Sequence[Addition],
        own: Sequence[Matches],
        others: tuple[Matches, ...] = (),
    ) -> Term:
        """Return the term of a block; `own` is left out whatever the masks say."""
        anchor_rows = block.anchor_rows
        if anchor_rows is not None:
            anchor_rows = sent(anchor_rows, block.device)
        return Term(
            anchor=block.anchor,
            candidate=block.candidate,
            positive=positive,
            others=others,
            additions=tuple(additions),
            exclusions=tuple(self._exclusions(block, own)),
            anchor_rows=anchor_rows,
        )

    def _exclusions(self, block: P.Block, own: Sequence[Matches]) -> list[P.Exclusion]:
        """Return the exclusions of a block, `own` in any case: matches first, and on a device all
        matches together.

        All further exclusions are added to the logits after the matches, so that the NaN of a mask
        reaches the loss in any order of the masks.
        """
        matches = list(own)
        added: list[P.Exclusion] = []
        for mask in self.masks:
            for exclusion in mask(block):
                if isinstance(exclusion, Matches):
                    matches.append(exclusion)
                else:
                    added.append(exclusion)
        if block.device.type == "cpu" or not matches:
            return [*matches, *added]
        return [Listed(tuple(matches), block.device), *added]


def _refuse_parts(similarity: object, pools: object, corrections: object, masks: object) -> None:
    """Raise ConfigError for parts of another kind than an objective takes."""
    refuse_other(
        "similarity",
        similarity,
        isinstance(similarity, Similarity),
        "cosine or dot of tempera.similarity",
    )
    is_pools = isinstance(pools, Sequence) and all(isinstance(pool, P.Pool) for pool in pools)
    refuse_other("pools", pools, is_pools, "a list such as [pools.docs]")
    refuse_other("corrections", corrections, _are_made(corrections), "a list such as [LogQ()]")
    refuse_other("masks", masks, _are_made(masks), "a list such as [SameId()]")


def _are_made(parts: object) -> bool:
    """Return True for a sequence of parts that can be called with a block: objects or functions,
    but no classes, whose call would make an object."""
    if not isinstance(parts, Sequence):
        return False
    return all(callable(part) and not isinstance(part, type) for part in parts)


def _refuse_numbers(hardest: object, tile_elements: object) -> None:
    """Raise ConfigError for counts that are no whole numbers."""
    for name, count in (("hardest", hardest), ("tile_elements", tile_elements)):
        refuse_other(name, count, count is None or is_whole(count), "a whole number or None")


def _refuse_embeddings(batch: Batch[Tensor]) -> None:
    """Raise DataError unless embeddings are floating-point vectors of equal precision and width."""
    sides = batch.sides()
    for role, side in sides.items():
        if not (isinstance(side.rows, Tensor) and side.rows.is_floating_point()):
            raise DataError(
                f"embeddings are tensors of floating-point numbers, and those of {role} are {kind_of(side.rows)}"
            )
        if side.rows.dim() != 2:
            raise DataError(
                f"embeddings are rows of vectors, [n, D], and those of {role} have the shape {[*side.rows.shape]}"
            )
    if len({exact(side.rows[:0]).dtype for side in sides.values()}) > 1:
        kinds = ", ".join(f"{role} {side.rows.dtype}" for role, side in sides.items())
        raise DataError(f"embeddings of one batch are all float64 or none, and these are {kinds}")
    widths = sorted({side.rows.shape[1] for side in sides.values()})
    if len(widths) > 1:
        raise DataError(f"embeddings of one batch have one width, and these have {widths}")


def _refuse_vectors(batch: Batch[Tensor]) -> None:
    """Raise DataError unless the vectors of a guide or a teacher are floating-point numbers of
    equal width."""
    for name in ("guide", "teacher"):
        widths: dict[Role, int] = {}
        for role, side in batch.sides().items():
            vectors = getattr(side, name)
            if vectors is None:
                continue
            if not vectors.is_floating_point():
                raise DataError(f"vectors of a {name} are floating-point numbers: convert them")
            widths[role] = vectors.shape[1]
        if len(set(widths.values())) > 1:
            raise DataError(
                f"vectors of a {name} in one batch have one width, and these have {widths}"
            )


def base_of(module: nn.Module) -> Objective:
    """Return the objective among the modules of a module, such as a wrapper.

    Raises:
        ConfigError: the module holds no objective.
    """
    for each in module.modules():
        if isinstance(each, Objective):
            return each
    raise ConfigError(
        f"{article(type(module).__name__)} is no objective of tempera and holds none: give one, such as mnr(0.05)"
    )


def _present(batch: Batch[Tensor], pairs: Sequence[Pair]) -> list[P.Block]:
    """Return the blocks with candidates in the batch."""
    blocks = []
    for anchor, candidate in pairs:
        if len(batch.sides().get(candidate, ())):
            blocks.append(P.Block(batch, anchor, candidate))
    return blocks


def autocast_off(rows: Tensor) -> AbstractContextManager[Any]:
    """Return a context of products in the precision of the factors, also within a tower's
    autocast."""
    kind = rows.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


class _Losses(torch.autograd.Function):
    """Losses whose gradient is a second pass over the scores, since a row's share in the total is
    known only in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Objective,
        problem: Problem,
        roles: tuple[Role, ...],
        scale: Tensor,
        *rows: Tensor,
    ) -> Tensor:
        ctx.objective = objective
        ctx.problem = problem
        ctx.roles = roles
        ctx.save_for_backward(scale, *rows)
        with autocast_off(rows[0]):
            vectors = objective._vectors(dict(zip(roles, rows, strict=True)))
            return objective.loss_pass(problem, vectors, float(scale), None, False)[0]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        objective = ctx.objective
        scale, *rows = ctx.saved_tensors
        sides = dict(zip(ctx.roles, rows, strict=True))
        learns = ctx.needs_input_grad[3]
        with autocast_off(rows[0]):
            vectors = objective._vectors(sides)
            grads = objective.loss_pass(ctx.problem, vectors, float(scale), grad, learns)[1]
            assert grads is not None
            pulled = []
            for role, side in sides.items():
                pullback = objective.similarity.pullback
                pulled.append(pullback(side, vectors[role], grads.vectors[role]))
        scale_grad = grads.scale.to(scale) if learns else None
        return (None, None, None, scale_grad, *pulled)
