"""The one objective: cross entropy of the positive against everything its pools hold.

For row i with positive similarity s+, temperature t, and candidates c of its pools that no mask
leaves out,

    loss_i = log sum_c exp(s_ic / t + corrections_ic) - (s+_i / t + corrections_i+)

Each part is free of the others, and every combination of them runs through the same tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from ..arithmetic.abilities import placed, sent
from ..arithmetic.derivatives import differentiable_once
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
from .tiles import Problem, Softmax, Sweep, Term, sweep, tile_elements


class Objective(nn.Module):
    """Contrastive losses of a batch, one number a row. Presets choose these parts for methods with
    a name.

    Args:
        similarity: `cosine` or `dot`.
        temperature: a number, or a `Temperature` (which may follow a schedule or learn).
        pools: who stands in the denominator; one of them must hold the positive (docs, or
            back_queries). A pool whose rows the batch does not have is empty.
        corrections: terms added to the logits.
        masks: candidates that are left out; never a row's own positive. A row whose every negative
            is left out has loss 0, or log 2 where one softmax holds its positive in both directions
            (`gte`).
        partition: "joint" is one softmax over all pools; "per_direction" is one for each direction,
            averaged.
        numerator: "one" is the row's own positive; with several known positives of a query in the
            batch (by equal ids, or `Batch.known`), "mean" takes the mean of their log-probabilities
            (Khosla et al. 2020, eq. 2) and "sum" the log of their summed probability (Miech et al.
            2020, eq. 1).
        hardest: keep only this many highest negatives of each row; None keeps all.
        memory: a queue of past documents for the pool `memory`.
        teacher: a `Teacher`, whose distributions are learned beside the pairs, or in their place.
        tile_elements: scores held at once, a matter of speed and memory only; None is 2^20 on a
            CPU, and what fits a sixteenth of the free memory on another device, measured once.

    Raises:
        ConfigError: parts that do not go together.
        DataError: a part needs ids or other data that the batch does not have.

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
        refuse_other(
            "similarity",
            similarity,
            isinstance(similarity, Similarity),
            "cosine or dot of tempera.similarity",
        )
        refuse_other(
            "pools",
            pools,
            _are(pools, lambda pool: isinstance(pool, P.Pool)),
            "a list such as [pools.docs]",
        )
        refuse_other(
            "corrections", corrections, _are(corrections, _is_made), "a list such as [LogQ()]"
        )
        refuse_other("masks", masks, _are(masks, _is_made), "a list such as [SameId()]")
        for name, count in (("hardest", hardest), ("tile_elements", tile_elements)):
            refuse_other(name, count, count is None or is_whole(count), "a whole number or None")
        self.similarity = similarity
        self.temperature = (
            temperature if isinstance(temperature, Temperature) else Temperature(temperature)
        )
        self.pools, self.corrections, self.masks = tuple(pools), tuple(corrections), tuple(masks)
        self.partition, self.numerator, self.hardest = partition, numerator, hardest
        self.memory, self.teacher, self.tile_elements = memory, teacher, tile_elements
        self.progress = 0.0  # of the training, from 0 to 1, which the teacher's weight may follow
        # computes losses and gradients of a problem; a device may have another way to them
        self.sweep: Sweep = sweep
        self.tiles: dict[
            str, int
        ] = {}  # scores of a tile by type of device, as measured; a checkpoint keeps them
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
        for name, blocks in (self._groups(self.pools) or {"no pools": []}).items():
            if not any(P.holds_positive(*pair) for pair in blocks):
                advice = (
                    "add docs or back_queries to pools"
                    if partition == "joint"
                    else "choose partition joint"
                )
                raise ConfigError(
                    f"no pool holds the positive of the softmax over {name}: {advice}"
                )

    @property
    def asks_known(self) -> bool:
        """Return True if `Batch.known` makes a difference."""
        return self.numerator != "one" or any(
            isinstance(mask, KnownPositives) for mask in self.masks
        )

    @property
    def uses_negatives(self) -> bool:
        """Return True if hard negatives are candidates of a pool."""
        return any(candidate == "negatives" for pool in self.pools for _, candidate in pool.blocks)

    def forward(self, queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Tensor:
        """Return one loss a row, [b], differentiable for every embedding and the temperature.

        The memory, if there is one, has the documents of batches that it was given: call `remember`
            after the step.

        Train on its `.mean()`, or where a batch has weights, which the losses do not hold, on
        `(batch.shares() * losses).sum()`.

        Args:
            queries: embeddings, [b, D]; or a `Batch`, which also holds negatives, ids and weights,
                of whose rows the losses are this device's.
            documents: embeddings, [b, D], of which row i answers query i; None with a `Batch`.
        """
        batch = as_batch(queries, documents)
        batch = self.recall(batch) if batch.memory is None else batch
        roles, rows = zip(*((role, side.rows) for role, side in batch.sides().items()), strict=True)
        losses: Tensor = _Losses.apply(self, self.problem(batch), roles, self.scale(batch), *rows)  # type: ignore[no-untyped-call]
        return losses

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Losses, [b], and the gradients of sum(shares * losses), added to `.grad`, in one pass
        over the scores.

        Reaches every embedding that requires gradients, and the temperature if it learns and the
        batch has none of its own.
        """
        scale = self.scale(batch)
        rows = {role: side.rows for role, side in batch.sides().items()}
        with torch.no_grad(), autocast_off(batch.doc.rows):
            problem = self.problem(batch)
            vectors = {role: self.similarity.vectors(side) for role, side in rows.items()}
            near = placed(shares, vectors["query"])
            losses, grads = self.sweep(problem, vectors, float(scale), near, scale.requires_grad)
            assert grads is not None
            reached = [
                (side, self.similarity.pullback(side, vectors[role], grads.vectors[role]))
                for role, side in rows.items()
                if side.requires_grad
            ]
        torch.autograd.backward([side for side, _ in reached], [grad for _, grad in reached])
        if scale.requires_grad:
            self.temperature.receive(grads.scale)
        return losses

    @torch.no_grad()
    def contrastive_losses(self, batch: Batch[Tensor]) -> Tensor:
        """Return the losses without a teacher's part and without gradient, [b]."""
        problem = self.problem(batch, taught=False)
        with autocast_off(batch.doc.rows):
            vectors = {
                role: self.similarity.vectors(side.rows) for role, side in batch.sides().items()
            }
            return self.sweep(problem, vectors, float(self.scale(batch)), None, False)[0]

    def scale(self, batch: Batch[Tensor]) -> Tensor:
        """1/t of a batch: by its own temperature, or by the dial."""
        if batch.temperature is None:
            return self.temperature.scale()
        return torch.tensor(1 / batch.temperature, dtype=torch.float64)

    def advance(self, progress: float) -> None:
        """Follow the schedules of the temperature and the teacher to `progress` of the run, from 0
        to 1."""
        self.temperature.advance(progress)
        self.progress = progress

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """The batch with what the memory holds, if there is one."""
        if self.memory is None:
            return batch
        side = self.memory.side()
        return replace(batch, memory=None if side is None else side.to(batch.doc.rows.device))

    def remember(self, batch: Batch[Tensor]) -> None:
        """Put the batch's documents into the memory, if there is one; to be called after the
        step."""
        if self.memory is not None:
            self.memory.push(batch.doc)

    def tile_size(self, device: torch.device) -> int:
        """Return the scores that a tile holds on a device, in all batches the same."""
        if self.tile_elements is None and device.type not in self.tiles:
            self.tiles[device.type] = tile_elements(device)
        return self.tile_elements or self.tiles[device.type]

    def _groups(
        self, pools: Sequence[P.Pool], by_anchor: bool = False
    ) -> dict[str, list[tuple[Role, Role]]]:
        """Blocks (anchor role, candidate role) of each softmax."""
        groups: dict[str, list[tuple[Role, Role]]] = {}
        for pair in (pair for pool in pools for pair in pool.blocks):
            name = P.direction(*pair) if self.partition == "per_direction" else "all pools"
            groups.setdefault(pair[0] if by_anchor else name, []).append(pair)
        return groups

    def problem(self, batch: Batch[Tensor], taught: bool = True) -> Problem:
        """Return the parts, bound to a batch.

        Args:
            taught: False leaves the teacher out.
        """
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
            raise DataError(
                f"embeddings of one batch are all float64 or none, and these are {kinds}"
            )
        if len(widths := sorted({side.rows.shape[1] for side in sides.values()})) > 1:
            raise DataError(f"embeddings of one batch have one width, and these have {widths}")
        for name in ("guide", "teacher"):
            vectors = {role: getattr(side, name) for role, side in sides.items()}
            lengths = {role: each.shape[1] for role, each in vectors.items() if each is not None}
            if any(each is not None and not each.is_floating_point() for each in vectors.values()):
                raise DataError(f"vectors of a {name} are floating-point numbers: convert them")
            if len(set(lengths.values())) > 1:
                raise DataError(
                    f"vectors of a {name} in one batch have one width, and these have {lengths}"
                )
        weight = self.teacher.share(self.progress) if self.teacher is not None and taught else 0.0
        groups = self._contrast(batch, 1 - weight) + self._teaching(batch, weight)
        tile = self.tile_size(batch.doc.rows.device)
        return Problem(tuple(groups), batch.local, self.hardest, self.numerator, tile)

    def _contrast(self, batch: Batch[Tensor], weight: float) -> list[Softmax]:
        """Return the softmaxes whose targets are positives, which weigh nothing where a teacher is
        all."""
        groups = self._groups(self.pools) if weight else {}
        made = []
        for pairs in groups.values():
            terms: list[Term] = []
            for block in _present(batch, pairs):
                first = not any(term.positive is not None for term in terms)
                terms.append(self._term(block, first))
            made.append(Softmax(tuple(terms), weight / len(groups)))
        return made

    def _teaching(self, batch: Batch[Tensor], weight: float) -> list[Softmax]:
        """Return the softmaxes whose targets are the teacher's: one for each kind of anchor."""
        teacher = self.teacher
        if teacher is None or not weight:
            return []
        blocks = [
            list(_present(batch, pairs))
            for pairs in self._groups(teacher.compared, by_anchor=True).values()
        ]
        present, bound = (
            [each for each in blocks if each],
            self._listed if teacher.own else self._taught,
        )
        share, scale = weight / max(1, len(present)), teacher.scales[0]
        return [Softmax(tuple(map(bound, each)), share, True, scale) for each in present]

    def _taught(self, block: P.Block) -> Term:
        """Return a term whose target is the teacher's: of corrections, only what is added to every
        candidate is in both."""
        assert self.teacher is not None
        positive, added = (
            block.positive,
            [correction(block).candidate for correction in self.corrections],
        )
        additions = [Addition(candidate=each) for each in added if each is not None]
        term = self._bound(
            block,
            None if positive is None else sent(positive, block.device),
            additions,
            block.itself,
        )
        return replace(term, teacher=self.teacher.logits(block, None))

    def _listed(self, block: P.Block) -> Term:
        """Return the same of each row's own candidates alone, which no sampling has brought."""
        assert self.teacher is not None
        lists = sent(block.lists, block.device)
        filling = lists < 0
        lists = lists.clamp_min(0)
        positive = (
            None
            if block.positive is None
            else torch.zeros_like(block.positive, device=block.device)
        )
        term = self._bound(block, positive, (), ())
        masked = [
            P.within(exclusion, lists, len(block.candidates)) for exclusion in term.exclusions
        ]
        # Last, for what a mask says of the column that fills up a list is nothing to the row.
        exclusions = (*masked, filling.__getitem__)
        return replace(
            term, exclusions=exclusions, lists=lists, teacher=self.teacher.logits(block, lists)
        )

    def others(self, block: P.Block) -> tuple[Matches, ...]:
        """Return the positives of other rows that the numerator counts with each row's own."""
        if self.numerator == "one" or block.positive is None:
            return ()
        return *SameId()(block), *(
            KnownPositives().matches(block) if block.batch.known is not None else ()
        )

    def _term(self, block: P.Block, first: bool) -> Term:
        others = self.others(block) if first else ()
        positive = block.positive
        positive = positive if positive is None or others else sent(positive, block.device)
        additions = [correction(block) for correction in self.corrections]
        return replace(self._bound(block, positive, additions, block.own_kind), others=others)

    def _bound(
        self,
        block: P.Block,
        positive: Tensor | None,
        additions: Sequence[Addition],
        own: Sequence[Matches],
    ) -> Term:
        """Return the term of a block; `own` is left out whatever the masks say."""
        anchor_rows = block.anchor_rows
        return Term(
            anchor=block.anchor,
            candidate=block.candidate,
            positive=positive,
            others=(),
            additions=tuple(additions),
            exclusions=tuple(self._exclusions(block, own)),
            anchor_rows=None if anchor_rows is None else sent(anchor_rows, block.device),
        )

    def _exclusions(self, block: P.Block, own: Sequence[Matches]) -> list[P.Exclusion]:
        """Return all that is left out of a block, `own` in any case: matches first, and on a device
        as one.

        What follows is added, and so a mask that says NaN is heard in whichever order masks are.
        """
        exclusions: list[P.Exclusion] = [
            *own,
            *(exclusion for mask in self.masks for exclusion in mask(block)),
        ]
        matches = [each for each in exclusions if isinstance(each, Matches)]
        added = [each for each in exclusions if not isinstance(each, Matches)]
        if block.device.type == "cpu" or not matches:
            return [*matches, *added]
        return [Listed(tuple(matches), block.device), *added]


def _are(parts: object, fits: Callable[[Any], bool]) -> bool:
    """Return True for a sequence of parts that all fit."""
    return isinstance(parts, Sequence) and all(map(fits, parts))


def _is_made(part: object) -> bool:
    """Return True for what can be called with a block: an object or a function, but not a class,
    which would make one of it."""
    return callable(part) and not isinstance(part, type)


def base_of(module: nn.Module) -> Objective:
    """Return the objective within a wrapper, or whatever else holds one.

    Raises:
        ConfigError: it holds none.
    """
    for each in module.modules():
        if isinstance(each, Objective):
            return each
    raise ConfigError(
        f"{article(type(module).__name__)} is no objective of tempera and holds none: give one, such as mnr(0.05)"
    )


def _present(batch: Batch[Tensor], pairs: Sequence[tuple[Role, Role]]) -> Iterator[P.Block]:
    """Yield the blocks whose candidates the batch has."""
    for anchor, candidate in pairs:
        if len(batch.sides().get(candidate, ())):
            yield P.Block(batch, anchor, candidate)


def autocast_off(rows: Tensor) -> AbstractContextManager[Any]:
    """Products in the precision of their factors, also where a tower's autocast is still on."""
    kind = rows.device.type
    return (
        torch.autocast(kind, enabled=False)
        if torch.amp.is_autocast_available(kind)
        else nullcontext()
    )


class _Losses(torch.autograd.Function):
    """Losses whose gradient is a second sweep, since a row's share in the total is known only in
    the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Objective,
        problem: Problem,
        roles: tuple[Role, ...],
        scale: Tensor,
        *rows: Tensor,
    ) -> Tensor:
        ctx.objective, ctx.problem, ctx.roles = objective, problem, roles
        ctx.save_for_backward(scale, *rows)
        with autocast_off(rows[0]):
            vectors = {
                role: objective.similarity.vectors(side)
                for role, side in zip(roles, rows, strict=True)
            }
            return objective.sweep(problem, vectors, float(scale), None, False)[0]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (scale, *rows), learns = ctx.saved_tensors, ctx.needs_input_grad[3]
        similarity = ctx.objective.similarity
        with autocast_off(rows[0]):
            vectors = {
                role: similarity.vectors(side) for role, side in zip(ctx.roles, rows, strict=True)
            }
            grads = ctx.objective.sweep(ctx.problem, vectors, float(scale), grad, learns)[1]
            assert grads is not None
            pulled = [
                similarity.pullback(side, vectors[role], grads.vectors[role])
                for role, side in zip(ctx.roles, rows, strict=True)
            ]
        return (None, None, None, grads.scale.to(scale) if learns else None, *pulled)
