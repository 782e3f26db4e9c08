"""What is missing or does not go together is told in one sentence that says what to do; what is not
needed is not asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import examples
import pytest
import torch
from examples import Parts

from tempera.arithmetic.ragged import Ragged
from tempera.core import pools, presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, expected_logq
from tempera.core.diagnose import diagnose
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.similarity import cosine, dot
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.engine.step import step
from tempera.errors import ConfigError, DataError

WHOLE = examples.batch_of(examples.made(0), torch.float32)
EVERY = tuple(pool for pool in pools.POOLS)


def lacking(field: str, *roles: str) -> Batch:
    """The whole batch without one thing that is known of some sides."""
    return replace(WHOLE, **{role: replace(WHOLE.sides()[role], **{field: None}) for role in roles})


def refusal(batch: Batch, **parts: object) -> str:
    """Why the batch is refused; by propagation as well."""
    memory = Memory(3) if pools.memory in parts.get("pools", ()) else None
    objective = Objective(memory=memory, **parts)
    with pytest.raises(DataError) as found:
        objective(batch)
    with pytest.raises(DataError, match=re.escape(str(found.value))):
        objective.propagate(batch, batch.shares())
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(("role", "pool"), [("doc", "docs"), ("negatives", "negatives"), ("sampled", "sampled"),
                                            ("memory", "memory"), ("query", "back_queries")])  # fmt: skip
def test_logq_is_asked_of_the_candidates(role: str, pool: str) -> None:
    batch, chosen = lacking("logq", role), tuple({pools.docs: 0, getattr(pools, pool): 0})
    for kind in ("classic", "refined"):
        said = refusal(batch, pools=chosen, corrections=(LogQ(kind),))
        assert (
            f"log_q needs logq of the {role} candidates" in said and "drop the correction" in said
        )
    # Of no other side.
    others = [side for side in batch.sides() if side not in (role, "doc")]
    memory = Memory(3) if pool == "memory" else None
    Objective(pools=chosen, corrections=(LogQ(),), memory=memory)(lacking("logq", *others))


def test_ids_are_asked_of_what_is_compared() -> None:
    none = lacking("ids", "query", "doc")
    assert "ids of neither query nor doc: give ids=" in refusal(none, masks=(SameId(),))
    assert "has no ids of doc" in refusal(lacking("ids", "doc"), masks=(SameId(),))
    for role in ("negatives", "sampled", "memory"):
        chosen = (pools.docs, getattr(pools, role))
        for mask in (SameId(), KnownPositives()):
            assert f"has no ids of {role}: give ids=" in refusal(
                lacking("ids", role), pools=chosen, masks=(mask,)
            )
    assert "has no ids of doc" in refusal(lacking("ids", "doc"), masks=(KnownPositives(),))
    for numerator in ("mean", "sum"):
        assert "ids of neither" in refusal(replace(none, known=None), numerator=numerator)
    # One of the two is enough for the rows themselves.
    rows = (pools.docs, pools.queries, pools.back_queries, pools.back_positives)
    for role in ("query", "doc"):
        assert bool(Objective(pools=rows, masks=(SameId(),))(lacking("ids", role)).isfinite().all())


def test_known_positives_ask_for_known() -> None:
    assert "give the batch known=Ragged" in refusal(
        replace(WHOLE, known=None), masks=(KnownPositives(),)
    )


@pytest.mark.parametrize("role", ["query", "doc", "negatives", "sampled", "memory"])
def test_a_guide_is_asked_of_every_side(role: str) -> None:
    chosen = (pools.docs, pools.negatives, pools.sampled, pools.memory)
    said = refusal(lacking("guide", role), pools=chosen, masks=(Guided(),))
    assert f"{role} has none: give the folder of a saved model as train.guide=FOLDER" in said
    Objective(pools=chosen, masks=(Guided(by="self"),), memory=Memory(3))(lacking("guide", role))


@pytest.mark.parametrize("role", ["query", "doc", "negatives", "sampled"])
def test_a_teacher_is_asked_of_every_side_that_it_compares(role: str) -> None:
    assert f"{role} has none: give teacher=" in refusal(lacking("teacher", role), teacher=Teacher())
    if role != "query":
        one = Objective(teacher=Teacher(pools=(pools.back_queries,)))
        assert bool(one(lacking("teacher", *{"negatives", "sampled"} - {role})).isfinite().all())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weight": 1.5}, "weight is a share from 0 to 1, not 1.5"),
        ({"turn": -0.1}, "turn is a share"),
        ({"temperature": 0.0}, "the temperature must be above 0"),
        ({"student_temperature": -1.0}, "the temperature must be above 0"),
        ({"pools": ()}, "no pools"),
        (
            {"over": "own", "pools": (pools.docs,)},
            "own lists have no pools: drop pools, or set over: pools",
        ),
    ],
)
def test_teachers_that_are_none(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Teacher(**wrong)


def test_what_no_part_asks_for_may_be_missing() -> None:
    bare = replace(WHOLE, known=None, weight=None)
    for field in ("ids", "logq", "guide", "teacher"):
        bare = replace(
            bare, **{r: replace(side, **{field: None}) for r, side in bare.sides().items()}
        )
    assert Objective(pools=EVERY, memory=Memory(3))(bare).equal(
        Objective(pools=EVERY, memory=Memory(3))(WHOLE)
    )


def test_batches_that_are_none() -> None:
    rows = torch.randn(3, 4)
    with pytest.raises(DataError, match="pairs queries with documents, and has 3 and 2"):
        Batch(Side(rows), Side(rows[:2]))
    with pytest.raises(DataError, match="negatives need an owner"):
        Batch(Side(rows), Side(rows), negatives=Side(rows))
    wide = Batch(Side(rows), Side(rows), sampled=Side(torch.randn(2, 5)))
    assert "have one width, and these have [4, 5]" in refusal(wide)


def test_expected_counts_of_sampled_documents_need_their_proposal() -> None:
    with pytest.raises(DataError, match="need their proposal probabilities"):
        expected_logq(10, torch.tensor([0.1]), 5)
    torch.testing.assert_close(expected_logq(10, torch.tensor([0.1])), torch.tensor([0.0]))
    torch.testing.assert_close(
        expected_logq(10, torch.tensor([0.1, 0.0]), 5, torch.tensor([0.2, 0.4])).exp(),
        torch.tensor([2.0, 2.0]),
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"pools": (pools.sampled,)},
            "no pool holds the positive of the softmax over all pools: add docs or back_queries",
        ),
        (
            {"pools": (pools.docs, pools.queries), "partition": "per_direction"},
            "no pool holds the positive of the softmax over query>query: choose partition joint",
        ),
        (
            {"pools": (pools.docs, pools.back_positives), "partition": "per_direction"},
            "over doc>doc: choose partition joint",
        ),
        (
            {"pools": (pools.docs, pools.back_docs), "partition": "per_direction"},
            "over doc>doc: choose partition joint",
        ),
        ({"pools": ()}, "no pool holds the positive of the softmax over no pools: add docs"),
        ({"hardest": 0}, "hardest keeps at least 1 negative and is 0"),
        ({"memory": Memory(3)}, "a memory and the pool memory go together"),
        ({"pools": (pools.docs, pools.memory)}, "a memory and the pool memory go together"),
        ({"temperature": 0.0}, "must be above 0"),
    ],
)
def test_parts_that_do_not_go_together(parts: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        Objective(**parts)
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: Objective(partition="per-direction"),
            "partition is joint or per_direction, not 'per-direction'. Did",
        ),
        (lambda: Objective(numerator="average"), "numerator is one or "),
        (
            lambda: Hardness(9.0, "othrs"),
            "hardness: on is others or own or all, not 'othrs'. Did you mean others?",
        ),
        (lambda: LogQ("clasic"), "log_q: kind is classic or refined"),
        (lambda: Guided(kind="rel"), "guided: kind is absolute or relative"),
        (lambda: Guided(by="model"), "guided: by is guide or self"),
        (
            lambda: Temperature(0.1, final=0.02, schedule="lin"),
            "temperature: schedule is linear or cosine",
        ),
        (lambda: Teacher(over="pool"), "teacher: over is pools or own"),
        (
            lambda: Teacher(turn=0.5),
            "teacher: turn is the moment from which final holds: give final, or drop turn",
        ),
    ],
)
def test_words_that_are_not_known(made: Any, said: str) -> None:
    """A misspelt word would take the last branch and train another loss."""
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        made()


@pytest.mark.parametrize("word", ["Auto", "0.05"])
def test_a_temperature_is_no_word(word: Any) -> None:
    for make in (lambda: Temperature(word), lambda: Temperature(0.1, final=word)):
        with pytest.raises(
            ConfigError, match=f"a temperature is a number, or auto, and not {word!r}"
        ):
            make()


def test_embeddings_are_rows_of_one_kind() -> None:
    rows = torch.eye(3)
    with pytest.raises(
        DataError,
        match=r"embeddings are rows of vectors, \[n, D\], and those of query have the shape \[3\]",
    ):
        Objective()(torch.ones(3), torch.ones(3))
    with pytest.raises(
        DataError,
        match=r"all float64 or none, and these are query torch\.float64, doc torch\.float32",
    ):
        Objective()(rows.double(), rows)
    Objective()(rows.bfloat16(), rows)  # a frozen side may be in another one
    with pytest.raises(DataError, match="a batch without rows cannot be diagnosed"):
        diagnose(Objective(), rows[:0], rows[:0])


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([pools.docs, pools.docs], "the pools docs and docs hold the same block, query>doc,"),
        ([pools.docs, pools.negatives, pools.negatives], "the pools negatives and negatives hold the same block"),
        ([pools.docs, pools.back_docs, pools.back_docs], "the pools back_docs and back_docs hold the same block, doc>doc"),
        ([pools.docs, pools.back_docs, pools.back_positives, pools.back_positives], "the pools back_docs and back_positives and"),
        ([pools.docs, pools.Pool("mine", (("query", "doc"),))], "the pools docs and mine hold the same block, query>doc"),
    ],
)  # fmt: skip
def test_a_softmax_counts_each_candidate_once(chosen: list[pools.Pool], said: str) -> None:
    for make in (presets.mnr, lambda pools: Teacher(pools=pools)):
        with pytest.raises(
            ConfigError, match=f"^{said}.* counts each candidate once: drop one of them$"
        ):
            make(pools=chosen)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"masks": SameId()}, r"masks is a list such as \[SameId\(\)\], not SameId"),
        ({"masks": ["same_id"]}, r"masks is a list .* not \['same_id'\]"),
        ({"masks": [SameId]}, "masks is a list .* not .*class"),
        ({"pools": ["docs"]}, r"pools is a list such as \[pools.docs\], not \['docs'\]"),
        ({"pools": pools.docs}, "pools is a list"),
        ({"corrections": [LogQ]}, "corrections is a list such as"),
        ({"similarity": "dot"}, "similarity is cosine or dot of tempera.similarity, not 'dot'"),
        ({"hardest": 2.5}, "hardest is a whole number or None, not 2.5"),
        ({"tile_elements": 0}, "tile_elements is at least 1 and is 0"),
        ({"tile_elements": -5}, "tile_elements is at least 1 and is -5"),
        (
            {"temperature": torch.tensor(0.05, requires_grad=True)},
            "a temperature is a number, .* learnable=True",
        ),
        (
            {"temperature": torch.nn.Parameter(torch.tensor(0.05))},
            "a temperature is a number, .* learnable=True",
        ),
        ({"temperature": None}, "a temperature is a number, or auto, and not None; usual values"),
        (
            {"temperature": torch.tensor([0.05, 0.1])},
            r"a temperature is a number, or auto, and not tensor\(\[0.05",
        ),
        ({"temperature": [0.05]}, r"a temperature is a number, or auto, and not \[0.05\]"),
    ],
)
def test_parts_of_another_kind(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        presets.mnr(**parts)


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ((("query", "foo"),), "the candidate is query or doc"),
        ((("foo", "doc"),), "the anchor is query or doc, not 'foo'"),
        (("query", "doc"), "a block is .* not 'query'"),
        ((("query", "doc", "doc"),), "a block is"),
    ],
)
def test_pools_are_pairs_of_roles(blocks: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^pool 'm': {said}"):
        pools.Pool("m", blocks)


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ({"ids": torch.rand(3)}, "a side has ids of torch.float32: give a tensor of integers"),
        ({"ids": [1, 2, 3]}, "a side has ids of list: give a tensor of integers"),
        ({"owner": torch.zeros(3)}, "a side has owner of torch.float32: give a tensor of integers"),
        ({"logq": [0.1, 0.2, 0.3]}, "a side has logq of list: give a tensor of numbers"),
    ],
)
def test_what_is_known_of_rows_are_tensors(side: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"^{said}, one for each row$"):
        Side(torch.eye(3), **side)


@pytest.mark.parametrize("shape", [(), (3, 1), (3, 3)])
@pytest.mark.parametrize("field", ["ids", "logq", "owner", "weight", "answer"])
def test_what_is_a_number_of_each_row_is_no_column(field: str, shape: tuple[int, ...]) -> None:
    """A column would be added to every row of the logits, and the losses be wrong without a
    word."""
    value, of_batch = torch.zeros(shape, dtype=torch.int64), field in ("weight", "answer")
    said = f"a {'batch' if of_batch else 'side'} has {field} of the shape {[*shape]}: give one number for each row"
    side = Side(torch.eye(3), ids=torch.arange(3))
    with pytest.raises(DataError, match=f"^{re.escape(said)}$"):
        Batch(side, side, **{field: value}) if of_batch else replace(side, **{field: value})


@pytest.mark.parametrize("shape", [(), (3,), (3, 2, 1)])
@pytest.mark.parametrize("field", ["guide", "teacher"])
def test_what_is_a_vector_of_each_row_has_two_dimensions(
    field: str, shape: tuple[int, ...]
) -> None:
    said = f"a side has {field} of the shape {[*shape]}: give one vector for each row"
    with pytest.raises(DataError, match=f"^{re.escape(said)}$"):
        Side(torch.eye(3), **{field: torch.zeros(shape)})


@pytest.mark.parametrize("field", ["guide", "teacher"])
def test_vectors_of_another_model_have_one_width(field: str) -> None:
    sides = [Side(torch.eye(3), **{field: torch.eye(3)[:, :width]}) for width in (3, 2)]
    parts: dict[str, Any] = {"masks": (Guided(),)} if field == "guide" else {"teacher": Teacher()}
    said = (
        f"vectors of a {field} in one batch have one width, and these have {{'query': 3, 'doc': 2}}"
    )
    assert refusal(Batch(*sides), **parts) == said


def test_rows_and_known_answers_of_another_kind() -> None:
    side = Side(torch.eye(2))
    for rows in (torch.eye(2).numpy(), torch.eye(2).tolist()):
        said = f"a side has rows of {type(rows).__name__}, and no tensor: write torch.as_tensor(rows), or Ragged.of(rows)"
        with pytest.raises(DataError, match=f"^{re.escape(said)}$"):
            Side(rows)
    with pytest.raises(
        DataError, match=r"^a batch has known of list: give a Ragged, such as Ragged.of\("
    ):
        Batch(side, side, known=[[0], [1]])  # type: ignore[arg-type]
    for role, sides in (
        ("query", (torch.eye(2), side)),
        ("doc", (side, None)),
        ("negatives", (side, side, torch.eye(2))),
    ):
        with pytest.raises(
            DataError, match=f"^a batch has {role} of .*: give a Side, such as Side"
        ):
            Batch(*sides)  # type: ignore[arg-type]


def test_answers_are_ids_that_documents_have() -> None:
    side = Side(torch.eye(3), ids=torch.arange(3))
    with pytest.raises(
        DataError, match=r"^answer names the document of every query, by id: give doc its ids$"
    ):
        Batch(side, Side(torch.eye(3)), answer=torch.arange(3))
    with pytest.raises(
        DataError, match=r"^a batch of 3 rows has answer of 2: give one for each row$"
    ):
        Batch(side, side, answer=torch.arange(2))
    for wrong, kind in (([0, 1, 2], "list"), (torch.rand(3), "torch.float32")):
        with pytest.raises(
            DataError,
            match=f"^a batch has answer of {kind}: give a tensor of integers, one for each row$",
        ):
            Batch(side, side, answer=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_embeddings_are_floating_point(dtype: torch.dtype) -> None:
    batch = Batch(Side(torch.eye(3)), Side(torch.eye(3, dtype=dtype)))
    said = f"embeddings are tensors of floating-point numbers, and those of doc are {dtype}"
    for similarity in (cosine, dot):
        assert refusal(batch, similarity=similarity) == said
    with pytest.raises(DataError, match=r"and those of doc are Ragged$"):
        Objective()(Batch(Side(torch.eye(3)), Side(Ragged.of([[0], [1], [2]]))))


def test_weights_and_owners_in_their_range() -> None:
    side = Side(torch.eye(3))
    for wrong in (-1.0, -float("inf")):
        with pytest.raises(
            DataError, match=r"^a batch has a row of weight .*: give weights of 0 or more$"
        ):
            Batch(side, side, weight=torch.tensor([1.0, wrong, 2.0]))
    with pytest.raises(DataError, match=r"^a batch has weight of list"):
        Batch(side, side, weight=[1.0, 1.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"^a batch of 3 rows has a negative of row -2: count them from 0"
    ):
        Batch(side, side, negatives=Side(torch.eye(3), owner=torch.tensor([0, -2, -1])))
    Batch(side, side, weight=torch.zeros(3))


def test_a_memory_keeps_something() -> None:
    with pytest.raises(ConfigError, match="at least 1 document, and size is 0"):
        Memory(0)


def test_what_the_examples_allow_is_what_the_objective_allows() -> None:
    for chosen in examples.subsets(examples.POOLS):
        for partition in ("joint", "per_direction"):
            parts = Parts(pools=chosen, partition=partition)
            if not (chosen and parts.allowed):
                with pytest.raises(ConfigError):
                    examples.objective_of(parts)
            else:
                assert examples.objective_of(parts).similarity is cosine


@pytest.mark.parametrize("other", [0, 2, 4])
@pytest.mark.parametrize("field", ["ids", "logq", "guide", "owner", "teacher"])
def test_fields_of_a_side_are_as_long_as_its_rows(field: str, other: int) -> None:
    with pytest.raises(
        DataError, match=f"^a side of 3 rows has {field} of {other}: give one for each row$"
    ):
        Side(torch.eye(3), **{field: torch.zeros(other, dtype=torch.int64)})  # type: ignore[arg-type]


def test_fields_of_a_batch_are_as_long_as_its_rows_and_negatives_are_of_these() -> None:
    side = Side(torch.eye(3))
    for field, value in (
        ("weight", torch.ones(2)),
        ("weight", torch.ones(4)),
        ("known", Ragged.of([[1], [2]])),
    ):
        with pytest.raises(
            DataError,
            match=f"^a batch of 3 rows has {field} of {len(value)}: give one for each row$",
        ):
            Batch(side, side, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"^a batch of 3 rows has a negative of row 3: count them from 0$"
    ):
        Batch(side, side, negatives=Side(torch.eye(3), owner=torch.tensor([0, 3, -1])))
    Batch(side, side, negatives=Side(torch.eye(3), owner=torch.tensor([0, 2, -1])))


def test_what_is_no_objective_and_no_batch_is_one_line() -> None:
    rows = torch.eye(3)
    for wrong in (torch.nn.CrossEntropyLoss(), torch.nn.Linear(2, 2)):
        with pytest.raises(
            ConfigError, match=f"a {type(wrong).__name__} is no objective of tempera and holds none"
        ):
            diagnose(wrong, rows, rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a step takes an objective of tempera, such as mnr"):
        step(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), Batch(Side(rows), Side(rows)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"a step takes a Batch, such as Batch\(.*, not a tuple"):
        step(torch.nn.Linear(3, 2), Objective(), (rows, rows))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="an objective takes two tensors, queries and documents"):
        Objective()(torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(DataError, match="rows of vectors"):
        diagnose(Objective(), rows[0], rows[0])


def test_numbers_of_another_kind_are_refused_where_they_are_given() -> None:
    for wrong in (True, 2.5):
        with pytest.raises(ConfigError, match="hardest is a whole number or None"):
            Objective(hardest=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the size of a memory is a whole number"):
            Memory(wrong)  # type: ignore[arg-type]
    side = Side(torch.eye(3), guide=torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(DataError, match="vectors of a guide are floating-point numbers"):
        Objective(masks=[Guided()])(Batch(side, side))
