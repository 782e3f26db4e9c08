"""The fused kernels against the definition in loops, number by number, in Triton's interpreter;
`conftest.py` turns it on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tempera import Batch, Objective, Ragged, Side, Temperature, mnr, pools
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.similarity import cosine, dot
from tempera.core.teacher import Teacher
from tempera.core.tiles import tile_losses
from tempera.engine import fused, loop
from tempera.engine.devices import Devices
from tempera.engine.training_options import Training
from tempera.errors import ConfigError

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings(
    "ignore:divide by zero encountered in log"
)  # numpy's, of rows without candidates
CLOSE = 1e-5
HALF = 2e-3  # with products in fp16
EVERY = {pool.name: pool for pool in pools.POOLS}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "DEVICE", "cpu")
    monkeypatch.setattr(
        fused, "SHAPE", fused.Shape(16, 16, 16, 2)
    )  # so that these problems have several tiles


def batch(
    draw: random.Random, n: int, width: int, dtype: torch.dtype = torch.float32
) -> Batch[Tensor]:
    """Draw rows with ids of which some are equal, and of every other role up to as many."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))

    def side(count: int, owner: bool = False) -> Side[Tensor]:
        rows = torch.randn(count, width, generator=generator) / width**0.25
        ids = torch.randint(-(n + 2), n + 2, (count,), generator=generator)
        owners = torch.randint(n, (count,), generator=generator) if owner else None
        return Side(
            rows.to(dtype).float(), ids, -3 * torch.rand(count, generator=generator), owner=owners
        )

    others = {
        "negatives": side(draw.randrange(n + 1), True),
        "sampled": side(draw.randrange(n + 1)),
    }
    weight = torch.rand(n, generator=generator) if draw.random() < 0.5 else None
    span = (
        range(draw.randrange(n), n) if draw.random() < 0.3 else None
    )  # of a process among several
    return Batch(
        side(n), side(n), **others, memory=side(draw.randrange(n + 1)), weight=weight, span=span
    )


def drawn(draw: random.Random, width: int) -> Objective:
    """Draw an objective of parts that the kernels take."""
    positives = draw.choice([["docs"], ["docs"], ["back_queries"], ["docs", "back_queries"]])
    more = [
        name
        for name in ("negatives", "sampled", "memory")
        if "docs" in positives and draw.random() < 0.3
    ]
    partition = draw.choice(["joint", "per_direction"])
    if partition == "joint":
        more += [name for name in ("queries", "back_docs", "back_positives") if draw.random() < 0.2]
    several = [EVERY[name] for name in [*positives, *more]]
    corrections = [
        *draw.choice([[], [LogQ()], [LogQ("refined", 0.7)]]),
        *draw.choice([[], [Margin(0.4)]]),
    ]
    compared = draw.choice([(cosine, draw.choice([0.05, 0.3])), (dot, 1.0)])
    return Objective(
        *(compared if width > 1 else (dot, 1.0)),  # the cosine of a single number has no gradient
        draw.sample(several, len(several)),
        corrections,
        draw.choice([[], [SameId()]]),
        partition,
        memory=Memory(3) if "memory" in more else None,
    )


def gradients(
    objective: Objective, rows: Batch[Tensor], losses: Callable[[Batch[Tensor]], Tensor]
) -> list[Tensor]:
    """Return losses, and the gradients of the embeddings and the scale of their weighted sum."""
    leaves = rows.map(lambda x: x.detach().clone().requires_grad_())
    scale = Temperature(objective.temperature.value, learnable=True)
    objective.temperature = scale
    each = losses(leaves)
    (each * rows.shares().to(each)).sum().backward()
    grads = [
        torch.zeros_like(s.rows) if s.rows.grad is None else s.rows.grad
        for s in leaves.sides().values()
    ]
    return [each.detach(), torch.cat(grads), scale.log_scale.grad]


def off(objective: Objective, rows: Batch[Tensor], half: bool = False) -> float:
    """Return how far the kernels are off the definition: losses, gradients relative to their
    largest entry, and the scale's."""
    took = fused.Fused(1 if half else 2)
    objective.loss_pass = took
    got = gradients(objective, rows, objective)
    assert not took.said
    exact = rows.map(lambda x: x.double())
    want = gradients(
        objective, exact, lambda leaves: defined_losses(objective, leaves)[leaves.local]
    )
    gaps = [(x.double() - y).abs().max() for x, y in zip(got, want, strict=True)]
    largest = want[1].abs().max().clamp(min=0.01)  # all may be masked
    sizes = [want[0].abs().max().clamp(min=1), largest, want[2].abs().clamp(min=largest)]
    return max(float(gap / size) for gap, size in zip(gaps, sizes, strict=True))


def problem(seed: int, least: int = 1, most: int = 40) -> float:
    """Return how far a problem that is drawn is off, as a share of what it may be."""
    draw = random.Random(seed)
    n, width, half = draw.randint(least, most), draw.choice([1, 3, 16, 33, 64]), draw.random() < 0.3
    objective = drawn(draw, width)
    half = (
        half and objective.similarity is dot
    )  # whose vectors are the embeddings, which bf16 holds here
    return off(
        objective, batch(draw, n, width, torch.bfloat16 if half else torch.float32), half
    ) / (HALF if half else CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_losses_and_gradients_are_those_of_the_definition(seed: int) -> None:
    assert problem(seed, least=17, most=20) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 30))
def test_losses_and_gradients_of_many_problems(first: int) -> None:
    gaps = {seed: problem(seed) for seed in range(first, first + 30)}
    assert {seed: gap for seed, gap in gaps.items() if gap > 1} == {}


def test_a_known_answer_for_each_query_is_an_id() -> None:
    rows = batch(random.Random(3), 18, 16)
    known = Ragged.of([[i] if row % 3 else [] for row, i in enumerate(rows.doc.ids.tolist())])  # type: ignore[union-attr]
    assert off(mnr(masks=[KnownPositives()]), replace(rows, known=known, span=None)) <= CLOSE


def test_a_loss_that_float32_cannot_tell_from_0_keeps_its_precision() -> None:
    """One negative whose probability is below float32's distance of 1 and the number before it."""
    rows = torch.eye(2, requires_grad=True)
    objective = Objective(dot, 0.05)
    objective.loss_pass = fused.Fused()
    losses = objective(rows, torch.eye(2))
    losses.sum().backward()
    expected = torch.tensor([-20.0], dtype=torch.float64).exp()
    torch.testing.assert_close(losses.double(), expected.expand(2), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        rows.grad,
        20 * expected.float() * torch.tensor([[-1.0, 1.0], [1.0, -1.0]]),
        rtol=1e-5,
        atol=0,
    )


def test_large_logits_keep_their_distances() -> None:
    """Documents that are nearly alike: a probability that is off would multiply a whole
    document."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(32, 16, generator=generator)
    docs = queries[:1] + torch.randn(32, 16, generator=generator) / 1000
    rows = Batch(Side(queries * (1000 / (queries @ docs.T).abs().max())), Side(docs))
    objective = Objective(dot, 1.0)
    want = gradients(objective, rows.map(Tensor.double), objective)
    tiles = gradients(objective, rows, objective)
    objective.loss_pass = fused.Fused()
    got = gradients(objective, rows, objective)
    off, usual = ((x[1][:32] - want[1][:32]).norm() / want[1][:32].norm() for x in (got, tiles))
    assert off < 5 * usual < 1e-3


@pytest.mark.filterwarnings(
    "ignore:overflow encountered in exp2"
)  # of what the smaller of two numbers replaces
def test_huge_logits_have_gradients() -> None:
    objective = Objective(dot, 1.0)
    objective.loss_pass = fused.Fused()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        sides = (Side(torch.randn(17, 20, generator=generator) * 6e3) for _ in range(2))
        assert all(bool(x.isfinite().all()) for x in gradients(objective, Batch(*sides), objective))


def test_half_precision_is_not_for_low_temperatures() -> None:
    rows = batch(random.Random(1), 20, 8)
    for temperature, same in ((0.05, False), (0.01, True)):
        found = []
        for parts in (1, 2):
            objective = mnr(temperature=temperature)
            objective.loss_pass = fused.Fused(parts)
            found.append(gradients(objective, rows, objective)[1])
        assert torch.equal(*found) == same


NOT_TAKEN: dict[str, tuple[Objective, int]] = {
    "a teacher's distributions are learned": (mnr(teacher=Teacher(0.3)), 3),
    "the numerator is mean": (mnr(numerator="mean", masks=[SameId()]), 3),
    "only the 2 hardest negatives count": (mnr(hardest=2), 3),
    "a correction is a function of each similarity": (mnr(corrections=[Hardness(9.0)]), 3),
    "a mask is more than one id": (mnr(masks=[SameId(), KnownPositives()]), 3),
    "a mask is more than one": (mnr(masks=[Guided(by="self")]), 3),
}


@pytest.mark.parametrize("why", NOT_TAKEN)
def test_what_the_kernels_do_not_take_has_the_bits_of_torch_and_a_line_in_the_log(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    objective, width = NOT_TAKEN[why]
    rows = batch(random.Random(0), 6, width)
    teacher = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
    sides = {
        "query": replace(rows.query, teacher=teacher),
        "doc": replace(rows.doc, teacher=teacher),
    }
    ids = rows.doc.ids.tolist()  # type: ignore[union-attr]
    rows = Batch(**sides, known=Ragged.of([*zip(ids, reversed(ids))]))  # type: ignore[arg-type]
    want = gradients(objective, rows, objective)
    objective.loss_pass = fused.Fused()
    with caplog.at_level("INFO", logger="tempera"):
        got = gradients(objective, rows, objective)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    (line,) = [record.message for record in caplog.records]
    assert (
        line.startswith("train.kernel=triton: the loss stage stays with torch, since ")
        and why in line
    )


def test_shared_documents_float64_and_other_devices_stay_with_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Batch(
        Side(torch.eye(2)), Side(torch.eye(2), torch.arange(2)), answer=torch.tensor([1, 1])
    )
    vectors = {"query": torch.eye(2), "doc": torch.eye(2)}
    back = Objective(pools=[pools.back_queries])
    assert fused.reason(back.problem(rows), vectors) == "rows share documents"
    plain = mnr().problem(Batch(Side(torch.eye(2)), Side(torch.eye(2))))
    assert fused.reason(plain, vectors) is None
    assert (
        fused.reason(plain, {"query": torch.eye(2).double()})
        == "they compute in float32, and the embeddings are float64"
    )
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    assert fused.reason(plain, vectors) == "triton is not installed"
    monkeypatch.undo()
    assert fused.reason(plain, vectors) == "they run on cuda devices, and this is cpu"


@pytest.mark.parametrize("kernel", ["auto", "torch", "triton"])
@pytest.mark.parametrize("pays", [False, True])
def test_a_run_takes_the_kernels_where_its_option_says_so_or_where_they_pay(
    kernel: fused.Kernel, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fused.reach(torch.device("cpu")) == "no"
    monkeypatch.setattr(loop, "reach", lambda device: "pay" if pays else "run")
    objective = mnr()
    options = Training(kernel=kernel)
    loop.begin(
        torch.nn.Linear(2, 2),
        torch.nn.Sequential(objective),
        options,
        Devices(mixed_precision="bf16"),
    )  # type: ignore[arg-type]
    wanted = {"triton": fused.Fused(1), "auto": fused.Fused(1, fused.MANY) if pays else tile_losses}
    assert objective.loss_pass == wanted.get(kernel, tile_losses)


def test_few_scores_stay_with_torch_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    rows, objective = batch(random.Random(0), 20, 8), mnr()
    want = gradients(objective, rows, objective)
    objective.loss_pass = fused.Fused(least=1000)
    with caplog.at_level("INFO", logger="tempera"):
        got = gradients(objective, rows, objective)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True)) and not caplog.records
    objective.loss_pass = fused.Fused(least=400)
    assert not torch.equal(
        gradients(objective, rows, objective)[1], want[1]
    )  # by kernels, which round otherwise


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Failed to find C compiler.\nSpecify it"), torch.OutOfMemoryError("CUDA")],
)
@pytest.mark.parametrize("least", [0, 1])
def test_kernels_that_do_not_run_are_told_once(
    least: int, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine without a C compiler, or without room: `triton` is refused, and `auto` stays
    with torch."""
    rows, objective = batch(random.Random(0), 6, 8), mnr()
    want = gradients(objective, rows, objective)
    calls = []

    def broken(*_: object) -> None:
        calls.append(1)
        raise error

    monkeypatch.setattr(fused, "_losses_by_kernels", broken)
    objective.loss_pass = fused.Fused(least=least)
    if not least:
        wanted = type(error) if isinstance(error, torch.OutOfMemoryError) else ConfigError
        with pytest.raises(
            wanted, match=r"CUDA|the fused kernels do not run here: Failed to find C compiler"
        ):
            gradients(objective, rows, objective)
        return
    got = gradients(objective, rows, objective)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True)) and calls == [1]
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("torch computes the loss stage") and "\n" not in line


COMPILE = """
import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tempera.engine import fused, kernels

kinds = {"b": "i32", "c": "i32", "stride": "i32", "positive": "*i32", "row_ids": "*i32", "column_ids": "*i32", "target": "fp32"}
kinds |= dict.fromkeys(("anchors", "candidates", "high", "low"), "*fp16")
shape = vars(fused.SHAPE)
options = {name: shape[name] for name in ("num_warps", "num_stages")}
fixed = {"K": 2, "W": 1152, "OWN": True, "TARGET": True, "PARTS": 2, **shape}
for kernel in (kernels.log_sums, kernels.logit_gradients):
    own = {name: value for name, value in fixed.items() if name in kernel.arg_names}
    types = {name: "constexpr" if name in own else kinds.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in own.items()}
    made = compile(ASTSource(kernel, types, places), target=GPUTarget("cuda", 80, 32), options=options)
    assert len(made.asm["cubin"]) and made.metadata.shared <= 99 << 10, made.metadata.shared
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_and_fit_its_shared_memory() -> None:
    """Triton brings NVIDIA's assembler, so no GPU is needed; those of compute capability 8 share 99
    KiB at least."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True, timeout=280)
