"""Features of entities as vectors: what is known, what is unknown, what is shared."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from tempera.arithmetic.ragged import Ragged
from tempera.errors import ConfigError, DataError
from tempera.recommend.train import encoders
from tempera.recommend.train.candidates import features_of
from tempera.recommend.train.encoders import (
    UNKNOWN,
    Bag,
    Categories,
    Category,
    Entities,
    Id,
    Lookup,
    Number,
    ScaledVector,
    Tables,
    Text,
    Time,
    Waiting,
    buckets_of,
)

WIDTH = 6
IDS = ["a", "b", "c", "d", "e"]
COUNT = [3, 0, 1, 2, 0]  # b and e are not trained on


def entities(count: list[int] = COUNT, **columns: Any) -> Entities:
    ids = columns.pop("id", IDS)
    return Entities(pa.table({"id": pa.array(ids), **columns}), np.array(count))


def encoder(feature: Any, given: Entities, tables: Tables | None = None) -> Any:
    torch.manual_seed(0)
    return feature.encoder(given, "item", WIDTH, Tables() if tables is None else tables).eval()


def vectors(feature: Any, given: Entities) -> list[list[float]]:
    found: list[list[float]] = encoder(feature, given)(torch.arange(len(given.table))).tolist()
    return found


# Ids
# -----------------------------------------------------------------------------------------------------------------


def test_every_id_that_is_trained_on_has_a_vector_and_the_others_share_one() -> None:
    made = encoder(Id(unknown=0.1), entities())
    a, b, c, d, e = made(torch.arange(5)).tolist()
    assert (
        b == e == made.table.weight[UNKNOWN].tolist()
        and len({tuple(row) for row in (a, b, c, d)}) == 4
    )
    assert made.table.num_embeddings == len(made.table.weight) == 4


def test_the_unknown_vector_is_trained_where_new_ids_are_to_come() -> None:
    """In training a share of the rows stands for new ids; when judging, none does."""
    made = encoder(Id(unknown=0.3), entities())
    codes = torch.tensor([0, 2, 3] * 2000)
    assert torch.equal(made(codes), made(codes))
    made.train()
    rows = made(codes)
    rows.sum().backward()
    share = int((rows == made.table.weight[UNKNOWN]).all(1).sum()) / len(codes)
    assert abs(share - 0.3) < 4.5 * math.sqrt(0.3 * 0.7 / len(codes))
    assert (
        made.table.weight.grad[UNKNOWN].abs().sum() > 0
        and made.table.weight.detach()[UNKNOWN].norm() > 0.1
    )


def test_an_unknown_vector_that_nothing_trains_adds_nothing() -> None:
    """At random it would be noise beside the other features of a new item."""
    made = encoder(Id(), entities())
    assert made(torch.tensor([1, 4])).abs().sum() == 0
    made.train()
    made(torch.tensor([0, 2, 3])).sum().backward()
    assert made.table.weight.grad[UNKNOWN].abs().sum() == 0


def test_vectors_are_of_about_length_one() -> None:
    made = Id().encoder(entities([1] * 2000, id=list(range(2000))), "item", 64, Tables())
    assert isinstance(made, Lookup)
    lengths = made.table.weight.detach()[1:].norm(dim=1)
    assert abs(float(lengths.mean()) - 1) < 0.02


def test_buckets_are_the_same_everywhere() -> None:
    """By hash of the text: literal figures, so that a change of the hash, of the machine or of the
    order is seen."""
    assert buckets_of(pa.chunked_array([["a", "b", "movie 7", ""]]), 10).tolist() == [9, 5, 6, 8]
    assert (
        buckets_of(pa.chunked_array([[7, 8, 9]]), 10).tolist()
        == buckets_of(pa.chunked_array([["7", "8", "9"]]), 10).tolist()
    )
    many = buckets_of(pa.chunked_array([list(range(20_000))]), 10)
    assert np.bincount(many, minlength=10).min() > 1800  # 2,000 each, deviation 42


def test_ids_share_vectors_by_bucket_and_new_ones_have_one_too() -> None:
    given = entities([1] * 40, id=list(range(40)))
    made = encoder(Id(buckets=7), given)
    own = made(torch.arange(40)).tolist()
    buckets = buckets_of(given.table["id"], 7).tolist()
    assert all(
        (own[i] == own[j]) == (buckets[i] == buckets[j]) for i in range(40) for j in range(40)
    )
    assert made.table.num_embeddings == 8
    fewer = encoder(Id(buckets=7), entities([1, 0], id=[3, 31]))
    assert fewer.row_of.tolist() == [
        1 + buckets[3],
        1 + buckets[31],
    ]  # whoever else is there, and trained on or not


def test_nobody_is_in_no_bucket() -> None:
    """Who is asked for without an id has not what some bucket likes."""
    made = encoder(Id(buckets=3), entities([1, 1, 0], id=["a", "b", ""]))
    assert (
        made.row_of[2] == UNKNOWN
        and made(torch.tensor([2])).abs().sum() == 0 < made(torch.tensor([0])).abs().sum()
    )


def test_in_buckets_no_id_is_unknown() -> None:
    with pytest.raises(
        ConfigError, match=r"buckets 7 and unknown 0\.05: with buckets, unknown ids have the vector"
    ):
        Id(buckets=7, unknown=0.05)


# Categories
# ----------------------------------------------------------------------------------------------------------


def test_a_category_that_training_has_not_seen_is_as_a_missing_one() -> None:
    red, blue, missing, other, unseen = vectors(
        Category("colour"), entities(colour=["red", "blue", None, "red", "red"])
    )
    assert red == other == unseen and red != missing
    assert blue == missing and any(
        missing
    )  # c, which is trained on, has none: the vector for none is trained
    assert (
        vectors(Category("colour"), entities(colour=["red", "blue", "red", "red", None]))[4]
        == [0.0] * WIDTH
    )


@pytest.mark.parametrize(
    "column",
    [
        ["x|y", "z", "y", "", None],
        pa.array([["x", "y"], ["z"], ["y"], [], None]),
        pa.array([["x", "y"], ["z"], ["y"], [], None], pa.large_list(pa.large_string())),
    ],
)
def test_several_categories_are_the_mean_of_their_vectors(column: Any) -> None:
    made = encoder(Categories("tags"), entities(tags=column))
    assert isinstance(made, Bag)
    both, unseen, y, empty, missing = made(torch.arange(5))
    x = 2 * both - y
    assert made.table.num_embeddings == 3 and torch.equal(y, made.table.weight[2])
    assert torch.allclose(x, made.table.weight[1]) and not torch.allclose(x, y)
    assert (
        unseen.abs().sum() == empty.abs().sum() == missing.abs().sum() == 0
    )  # z, of b alone, is not trained on
    shuffled = made(torch.tensor([3, 2, 0, 0]))
    assert torch.equal(shuffled, torch.stack([empty, y, both, both]))
    assert made(torch.tensor([3])).tolist() == [[0.0] * WIDTH] and made(torch.arange(0)).shape == (
        0,
        WIDTH,
    )


def test_integers_are_categories_and_separators_are_a_choice() -> None:
    given = entities(year=[1990, 1991, 1990, None, 1991], tags=["a, b", "b", "b", "a", ""])
    assert vectors(Category("year"), given)[0] == vectors(Category("year"), given)[2]
    assert (
        vectors(Categories("tags", separator=", "), given)[2]
        == vectors(Categories("tags", separator=", "), given)[1]
    )


# Tables that are shared
# ----------------------------------------------------------------------------------------------


def test_features_share_a_table_by_value_and_not_by_number() -> None:
    """A user's favourite brand has the vector of the items of this brand, though each side knows
    other brands."""
    tables = Tables()
    of_items = encoder(
        Category("brand", table="brands"), entities(brand=["m", "n", "o", "p", "q"]), tables
    )
    before = of_items(torch.arange(5)).detach()
    users = entities([1, 1, 1], id=[1, 2, 3], favourites=["o|a", "z", "p|m"])
    of_users = encoder(Categories("favourites", table="brands"), users, tables)
    assert of_items.table is of_users.table and torch.equal(of_items(torch.arange(5)), before)
    o, m, p = (of_items(torch.tensor([code]))[0] for code in (2, 0, 3))
    weight = of_items.table.weight
    assert (
        weight.shape == (6, WIDTH) == (of_items.table.num_embeddings, WIDTH)
    )  # none, m, o, p; a, z
    found = of_users(torch.arange(3))
    assert torch.allclose(found[0], (o + weight[4]) / 2) and torch.allclose(found[2], (m + p) / 2)
    (found[2].sum() + of_items(torch.tensor([0])).sum()).backward()
    assert weight.grad is not None and weight.grad[1].tolist() == [1.5] * WIDTH  # both train m


def test_tables_of_other_names_are_apart() -> None:
    tables = Tables()
    given = entities(kind=["u", "v", "u", "v", "u"])
    one, other = (
        encoder(Category("kind"), given, tables),
        encoder(Category("kind", table="mine"), given, tables),
    )
    assert (
        one.table is not other.table and encoder(Category("kind"), given, tables).table is one.table
    )
    assert encoder(Id(), given, tables).table is encoder(Id("item"), given, tables).table


def test_a_shared_table_trains_its_unknown_vector_if_one_feature_does() -> None:
    given = entities()
    for features in ((Id(), Id(unknown=0.2)), (Id(unknown=0.2), Id())):
        tables = Tables()
        first, _ = (encoder(feature, given, tables) for feature in features)
        assert first.table.weight[UNKNOWN].abs().sum() > 0


# Numbers
# -------------------------------------------------------------------------------------------------------------


def test_numbers_are_normalised_by_what_is_trained_on() -> None:
    values = [1.0, 1e9, 4.0, None, math.nan]
    made = encoder(Number("price"), entities([1, 0, 2, 1, 1], price=values))
    assert isinstance(made, ScaledVector)
    mean, deviation = 2.5, 1.5
    slope, missing = made.weight
    found = made(torch.arange(5))
    for row, value in zip(found, values):
        known = value is not None and math.isfinite(value)
        wanted = slope * ((value - mean) / deviation) if known and value is not None else missing
        assert torch.allclose(row, wanted, rtol=1e-5)
    assert (
        missing.abs().sum() > 0
        and not encoder(Number("n"), entities(n=[1, 2, 3, 4, 5])).weight[1].any()
    )


def test_a_number_of_large_range_is_taken_by_its_log() -> None:
    given = entities([1] * 5, n=[-99.0, 0.0, 9.0, 99.0, 999.0])
    made = encoder(Number("n", scale="log"), given)
    logs = np.array([-math.log(100), 0, math.log(10), math.log(100), math.log(1000)])
    wanted = (logs - logs.mean()) / logs.std()
    assert made.values[:, 0].tolist() == pytest.approx(wanted.tolist(), rel=1e-5)


def test_buckets_of_numbers_hold_equally_many() -> None:
    numbers = np.random.default_rng(0).exponential(size=4000)
    given = entities([1] * 4000, id=list(range(4000)), n=numbers)
    made = encoder(Number("n", buckets=4), given)
    rows = made.row_of.numpy()
    assert np.bincount(rows).tolist() == [0, 1000, 1000, 1000, 1000]
    assert all(numbers[rows == i].max() < numbers[rows == i + 1].min() for i in (1, 2, 3))
    few = encoder(Number("n", buckets=10), entities([1] * 5, n=[1, 1, 1, 2, None]))
    assert few.row_of[0] == few.row_of[1] != few.row_of[3] and few.row_of[4] == UNKNOWN
    assert few(torch.tensor([4])).abs().sum() > 0 == made.table.weight[UNKNOWN].abs().sum()


def test_times_are_numbers() -> None:
    dates = [datetime.datetime(2020, 1, day, tzinfo=datetime.UTC) for day in (1, 2, 3, 4, 5)]
    assert encoder(Number("seen"), entities([1] * 5, seen=dates)).values[
        :, 0
    ].tolist() == pytest.approx([-(2**0.5), -(0.5**0.5), 0, 0.5**0.5, 2**0.5])


TIMES = [
    datetime.datetime(2020, 1, 6, 23, 59, 59, tzinfo=datetime.UTC),  # a Monday
    datetime.datetime(2021, 2, 7, 5, tzinfo=datetime.UTC),
    datetime.datetime(1969, 12, 28, 23, 0, 1, tzinfo=datetime.UTC),  # a Sunday
    None,
    datetime.datetime(2021, 1, 3, 5, tzinfo=datetime.UTC),
]
SECONDS = [None if moment is None else int(moment.timestamp()) for moment in TIMES]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TIMES, pa.timestamp("us", "UTC")),
        pa.array(TIMES, pa.timestamp("us", "UTC")).cast(pa.timestamp("ms", "Asia/Tokyo")),
        [None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}" for moment in TIMES],
        SECONDS,
    ],
    ids=["utc", "zone", "text", "seconds"],
)
def test_times_are_told_by_what_comes_back(column: Any) -> None:
    """By the calendar of Python; entity 1 and 4 are not trained on, and know of what others have
    trained."""
    made = encoder(Time("when", ("month", "weekday", "hour")), entities(when=column))
    names = [
        []
        if moment is None
        else [f"month {moment.month}", f"weekday {moment.weekday()}", f"hour {moment.hour}"]
        for moment in TIMES
    ]
    trained = [name for at in (0, 2) for name in names[at]]
    row = {name: 1 + at for at, name in enumerate(dict.fromkeys(trained))}
    assert len(made.table.weight) == 6 and made.table.weight[UNKNOWN].abs().sum() == 0
    for code, parts in enumerate(names):
        wanted = (
            sum((made.table.weight[row.get(part, UNKNOWN)] for part in parts), torch.zeros(WIDTH))
            / 3
        )
        assert torch.allclose(made(torch.tensor([code]))[0], wanted, atol=1e-6), code
    assert row["weekday 6"] in made.values.tolist() and made(torch.tensor([4])).abs().sum() > 0


def test_days_are_times_and_numbers() -> None:
    days = pa.array([datetime.date(2020, 1, day) for day in (1, 8, 15, 22, 23)])
    found = vectors(Time("day", ("weekday",)), entities([1] * 5, day=days))
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    assert (
        len(
            {
                tuple(row)
                for row in vectors(Time("day", ("day", "year")), entities([1] * 5, day=days))
            }
        )
        == 5
    )
    assert isinstance(encoder(Number("day", buckets=2), entities([1] * 5, day=days)), Lookup)


def test_waiting_is_told_by_powers_of_two() -> None:
    made = Waiting(WIDTH)
    found = made(torch.tensor([math.nan, -3.0, 0.0, 0.9, 1.0, 2.9, 3.0, 1e30])).tolist()
    assert found[1] == found[2] == found[3] and found[4] == found[5] != found[6]
    assert len({tuple(row) for row in found}) == 5 and found[0] == made.table.weight[0].tolist()


# Texts
# ---------------------------------------------------------------------------------------------------------------


def test_texts_are_read_by_a_text_tower_that_is_trained() -> None:
    titles = ["red shoe shoe", "blue shoe", "red hat hat", None, "shoe hat red"]
    made = encoder(Text("title"), entities(title=titles))
    shuffled = made(torch.tensor([4, 0, 0]))
    assert torch.allclose(shuffled, made(torch.arange(5))[[4, 0, 0]])
    assert (
        shuffled.shape == (3, WIDTH)
        and made(torch.tensor([3])).abs().sum() == 0
        and shuffled[0].abs().sum() > 0
    )
    assert made(torch.arange(0)).shape == (0, WIDTH)
    made(torch.arange(5)).sum().backward()
    assert (
        made.tower.embedding.weight.grad.abs().sum() > 0
        and made.project.weight.grad.abs().sum() > 0
    )
    assert made.double()(torch.arange(5)).dtype == torch.float64


class Padding(nn.Module):
    """A tower that pads, and remembers how wide and how many."""

    padded, learning_rate = True, 0.1

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.read = nn.Embedding(40, 3), []

    def build(self, texts: Any) -> Any:
        return self

    def of(self, role: str) -> Any:
        return self

    def features(self, texts: list[str], what: str) -> Ragged:
        return Ragged.of([[len(word) for word in text.split()] for text in texts])

    def forward(self, rows: Ragged) -> Tensor:
        self.read.append((len(rows), int(rows.lengths.max())))
        return torch.stack(
            [self.embedding(rows[i : i + 1].values).sum(0) for i in range(len(rows))]
        )


def test_texts_of_about_one_length_are_padded_together(monkeypatch) -> None:
    titles = ["a bb ccc", "a", "a bb ccc dddd eeeee ffffff", "bb", "ccc a"]
    made = encoder(Text("title", Padding()), entities(title=titles))  # type: ignore[arg-type]
    codes = torch.tensor([2, 0, 1, 4, 3, 2, 1])
    whole = made(codes)
    monkeypatch.setattr(encoders, "_ALIKE", 3)
    made.tower.read.clear()
    parts = made(codes)
    assert torch.equal(parts, whole)
    assert made.tower.read == [(3, 1), (3, 6), (1, 6)]
    (parts.sum() - whole.sum()).backward()
    assert made.tower.embedding.weight.grad.abs().max() < 1e-5


def test_two_prompts_of_a_text_tower_are_one_tower_here() -> None:
    """Towers whose roles differ embed an entity's text as a document."""
    from tempera.towers.pair import Towers
    from tempera.towers.static import Static

    class Two:
        learning_rate = 0.1

        def build(self, texts: Any) -> Any:
            return Towers(Static(8, 50).build(texts), Static(8, 50).build(texts))

    made = encoder(Text("title", Two()), entities(title=["red shoe shoe"] * 5))  # type: ignore[arg-type]
    made(torch.arange(5)).sum().backward()
    assert (
        made.tower.doc.embedding.weight.grad is not None
        and made.tower.query.embedding.weight.grad is None
    )


# Everywhere
# ----------------------------------------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    "c": ["u", None, "v", "u", "v"],
    "l": ["u|v", "", "v", "w|w", "v"],
    "n": [1.0, 2.0, None, 4.0, 5.0],
    "d": pa.array([0, 10**7, None, 10**8, 10**9], pa.timestamp("s")),
    "t": ["red shoe shoe", "", "red hat hat", "hat", "shoe red"],
}
EVERY: dict[str, Any] = {
    "id": Id(unknown=0.5),
    "buckets": Id(buckets=3),
    "category": Category("c"),
    "categories": Categories("l"),
    "number": Number("n"),
    "number in buckets": Number("n", buckets=2),
    "time": Time("d", ("month", "hour")),
    "text": Text("t"),
}


@pytest.mark.parametrize("name", EVERY)
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    made = encoder(EVERY[name], entities(**COLUMNS)).double()
    alone = torch.cat([made(torch.tensor([code])) for code in range(5)])
    assert torch.allclose(made(torch.arange(5)), alone, rtol=1e-14) and alone.dtype == torch.float64
    codes = torch.tensor([4, 4, 0, 2, 1, 3, 0])
    assert torch.allclose(made(codes), alone[codes], rtol=1e-14) and made(codes[:0]).shape == (
        0,
        WIDTH,
    )


@pytest.mark.parametrize("name", EVERY)
def test_what_is_kept_of_entities_moves_with_the_tower_and_is_not_saved(name: str) -> None:
    made: nn.Module = encoder(EVERY[name], entities(**COLUMNS))
    kept = {key for key, _ in made.named_buffers()}
    assert kept and not kept & set(made.state_dict())
    assert all(isinstance(value, Tensor) for value in made.state_dict().values())


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            Category("brand"),
            "the feature category needs a column 'brand'; the columns are id, n, l, s, i",
        ),
        (
            Categories("n"),
            "the feature categories cannot read the column 'n', which is int64: expected lists, or texts with "
            "separators; use category for one value",
        ),
        (Categories("none"), "the feature categories needs a column 'none'"),
        (
            Category("l"),
            "cannot read the column 'l', which is list<item: string>: expected one value; use categories",
        ),
        (
            Text("l"),
            "the feature text cannot read the column 'l', which is list<item: string>: expected one text",
        ),
        (
            Number("l"),
            "the feature number cannot read the column 'l', which is list<item: string>: expected a number",
        ),
        (
            Number("s"),
            "the feature number cannot read the column 's', which is 'x' for 'c': expected a number or null",
        ),
        (
            Number("i"),
            "the feature number cannot read the column 'i', which is infinite for 'b': expected a number",
        ),
        (Number("i", buckets=2), "the column 'i', which is infinite for 'b'"),
        (Number("i", scale="log"), "the column 'i', which is infinite for 'b'"),
        (
            Time("s", ("hour",)),
            "the feature time cannot read the column 's', which is '1' for 'a': expected a date",
        ),
        (
            Time("i", ("hour",)),
            "the feature time cannot read the column 'i', which is double: expected a date",
        ),
        (Number("none"), "the feature number needs a column 'none'"),
    ],
)
def test_columns_that_cannot_be_read_are_named(feature: Any, message: str) -> None:
    given = entities(
        n=[1, 2, 3, 4, 5],
        l=[["a"]] * 5,
        s=["1", None, "x", "4", "y"],
        i=[1.0, -math.inf, None, 2.0, math.inf],
    )
    with pytest.raises(DataError) as error:
        encoder(feature, given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_number_that_nobody_has_is_told() -> None:
    with pytest.raises(DataError, match="column 'n' has no number in training"):
        encoder(Number("n"), entities(n=[None, 2.0, None, None, 5.0]))


@pytest.mark.parametrize(
    ("feature", "column"),
    [
        (Categories("c"), pa.array([[]] * 5, pa.list_(pa.string()))),
        (Categories("c"), [None, ["x"], [], [None], ["y"]]),
        (Categories("c"), ["", "x|y", None, "", "z"]),
        (Category("c"), [None, "x", None, None, "y"]),
        (Time("c", ("month",)), [None, "2024-01-01", None, None, "2024-02-01"]),
    ],
)
def test_a_value_that_nobody_has_is_told(feature: Any, column: Any) -> None:
    with pytest.raises(DataError, match="tower: column 'c' has no value in training"):
        encoder(feature, entities(c=column))


def test_a_column_that_is_the_same_in_training_is_not_stretched() -> None:
    made = Number("price").encoder(
        entities([3, 3, 3, 0], id=list("abcd"), price=[0.1, 0.1, 0.1, 0.2]), "doc", 2, {}
    )
    assert made.values[:, 0].tolist() == pytest.approx([0, 0, 0, 0.1], abs=1e-6)


def test_columns_that_no_feature_reads_tell_nothing() -> None:
    columns = {
        "vector": pa.array([[0.1, 0.2], [0.3]], pa.list_(pa.float64())),
        "fixed": pa.array([[0.1], [0.3]], pa.list_(pa.float64(), 1)),
        "record": pa.array([{"a": 1}, {"a": 2}]),
        "bytes": pa.array([b"a", b"b"]),
        "span": pa.array([1, 2], pa.duration("s")),
        "tags": pa.array([["a"], ["b", "c"]]),
        "empty": pa.array([[], [None]], pa.list_(pa.string())),
    }
    assert features_of(entities([1, 1], id=["a", "b"], **columns)) == [
        {"categories": {"column": "tags"}}
    ]
