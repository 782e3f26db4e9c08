"""One static embedding, four ways to its vectors: by hand, by the tower, by sentence-transformers,
and by numpy alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tempera.arithmetic.ragged import Ragged
from tempera.errors import DataError, MissingLibrary
from tempera.task.rounds import DIMENSIONS
from tempera.towers.exportable import exportable
from tempera.towers.merged import Merged
from tempera.towers.saved import load
from tempera.towers.stamp import Kept
from tempera.towers.static import Static, StaticTower
from tempera.towers.subwords import Subwords
from tempera.towers.tokenizer import train_tokenizer

CORPUS = [
    "parse the date of a mail",
    "parseHTTPDate of a raw_text2",
    "the mail, the date",
    "Größe 漢字 of a mail",
] * 3
# An empty text, one without words, unknown letters, one far longer than is read, and one with them
# all.
TEXTS = [*CORPUS[:4], "", " \u2014_ ", "жжж ъ", "mail 2 " * 500, "the ж " * 9, "a", "\x00 the"]
EMPTY, LENGTH = [4, 5], 8


@pytest.fixture(scope="module")
def tower() -> StaticTower:
    torch.manual_seed(0)
    return Static(dimensions=6, vocabulary=60, max_length=LENGTH).build(CORPUS)


@pytest.fixture(scope="module")
def folder(tower: StaticTower, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "deep" / "model"
    tower.save(folder)
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A saved model to damage."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


@pytest.fixture(scope="module")
def by_hand(tower: StaticTower) -> np.ndarray:
    """Mean of the vectors of the first tokens, over its length, in float64."""
    table = tower.embedding.weight.detach().double().numpy()
    rows = []
    for text in TEXTS:
        ids = tower.tokenizer.encode(text, add_special_tokens=False).ids
        total = np.zeros(6)
        for token in ids:
            total += table[token]
        length = np.sqrt((total**2).sum())
        rows.append(total / length if ids else total)
    assert len(rows[7]) == 6 and len(tower.tokenizer.encode(TEXTS[7]).ids) == LENGTH
    return np.stack(rows)


def elsewhere(code: str, folder: Path, answer: Path) -> np.ndarray:
    """What a process without this package's help, or without torch, makes of the texts."""
    texts, out = json.dumps(TEXTS), str(answer / "vectors.npy")
    subprocess.run([sys.executable, "-c", code, str(folder), texts, out], check=True, cwd=answer)
    vectors = np.load(out)
    assert vectors.dtype == np.float32
    return vectors


def close(vectors: np.ndarray, expected: np.ndarray) -> None:
    assert vectors.shape == expected.shape == (len(TEXTS), 6)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    assert not vectors[EMPTY].any() and np.delete(vectors, EMPTY, 0).any(1).all()
    np.testing.assert_allclose(np.linalg.norm(np.delete(vectors, EMPTY, 0), axis=1), 1, atol=1e-6)


def test_the_tower_is_the_mean_by_hand(tower: StaticTower, by_hand: np.ndarray) -> None:
    features = tower.features(TEXTS)
    for block in (1, 3, 4096):
        close(tower.encode(features, block=block).numpy(), by_hand)
    assert not tower.encode(features).requires_grad and tower.encode(Ragged.of([])).shape == (0, 6)


def test_a_forward_pass_is_the_mean_and_teaches_the_tokens_that_were_read(
    tower: StaticTower,
) -> None:
    features = tower.features(["the mail", "", "the the date"])
    means = tower(features)
    table = tower.embedding.weight.detach().numpy()
    rows = [
        tower.tokenizer.encode(text, add_special_tokens=False).ids
        for text in ("the mail", "", "the the date")
    ]
    expected = [sum((table[t] for t in ids), np.zeros(6)) / max(1, len(ids)) for ids in rows]
    np.testing.assert_allclose(means.detach().numpy(), expected, atol=1e-6)
    (gradient,) = torch.autograd.grad(means.sum(), tower.embedding.weight)
    counts = np.zeros(len(table))
    for ids in rows:
        for token in ids:
            counts[token] += 1 / len(ids)
    np.testing.assert_allclose(gradient.numpy(), np.repeat(counts[:, None], 6, 1), atol=1e-6)


def test_weights_of_tokens_multiply_their_vectors_and_are_saved_with_them(
    tower: StaticTower, tmp_path: Path
) -> None:
    weighted = StaticTower(tower.tokenizer, 6, weighted=True)
    weighted.load_state_dict(
        {**tower.state_dict(), "log_weights": torch.zeros(len(tower.embedding.weight))}
    )
    features = weighted.features(TEXTS)
    close(weighted.encode(features).numpy(), tower.encode(features).numpy())  # before training
    assert weighted.log_weights is not None
    with torch.no_grad():
        weighted.log_weights.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    table = (
        tower.embedding.weight.detach().double()
        * (5 * weighted.log_weights.detach().double()).exp()[:, None]
    )
    products = StaticTower(tower.tokenizer, 6)
    products.load_state_dict({"embedding.weight": table.float()})
    assert products.weights is None
    expected = products.encode(features).numpy()
    assert np.abs(expected - tower.encode(features).numpy()).max() > 0.1
    close(weighted.encode(features).numpy(), expected)
    weighted.save(tmp_path)
    close(load(tmp_path)(TEXTS), expected)
    options = Static(vocabulary=60, dimensions=4, token_weights=True)
    assert (
        options.build(CORPUS).log_weights is not None
        and options.again(tower).log_weights is not None
    )
    assert replace(options, token_weights=False).build(CORPUS).log_weights is None


@pytest.mark.long
def test_sentence_transformers_opens_it_without_tempera(
    folder: Path, by_hand: np.ndarray, tmp_path: Path
) -> None:
    code = """
import json, sys
import numpy as np
sys.modules["tempera"] = None  # whoever imports it now fails
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True)
assert model.get_sentence_embedding_dimension() == 6 and model.similarity_fn_name == "cosine"
vectors = model.encode(json.loads(sys.argv[2]), show_progress_bar=False)
assert not [name for name, module in sys.modules.items() if name.startswith("tempera") and module]
np.save(sys.argv[3], vectors)
"""
    close(elsewhere(code, folder, tmp_path), by_hand)


def test_numpy_alone_opens_it(folder: Path, by_hand: np.ndarray, tmp_path: Path) -> None:
    close(load(folder)(TEXTS), by_hand)
    code = """
import json, sys
from pathlib import Path
import numpy as np
from tempera.towers.saved import load
vectors = load(Path(sys.argv[1]))(json.loads(sys.argv[2]))
loaded = {name.partition(".")[0] for name in sys.modules}
assert "tokenizers" in loaded and not loaded & {"torch", "transformers", "sentence_transformers"}, loaded
np.save(sys.argv[3], vectors)
"""
    close(elsewhere(code, folder, tmp_path), by_hand)
    assert load(folder)([]).shape == (0, 6)


def test_files_of_a_saved_model(folder: Path, tower: StaticTower, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    expected = "1_Normalize/config.json config_sentence_transformers.json model.safetensors modules.json tokenizer.json"
    assert names == expected.split()
    tower.save(tmp_path)  # a folder that is there
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_seeds_make_towers(tower: StaticTower) -> None:
    torch.manual_seed(0)
    again = Static(6, 60, LENGTH).build(CORPUS)
    assert torch.equal(again.embedding.weight, tower.embedding.weight)
    assert again.tokenizer.to_str() == tower.tokenizer.to_str()
    wide = StaticTower(tower.tokenizer, 400).embedding.weight
    assert wide.std().item() == pytest.approx(1 / 20, rel=0.05)  # unit vectors in expectation


def test_vectors_begin_with_inverse_document_frequencies() -> None:
    """Each token's random vector is scaled by log((n + 1) / (texts that hold it + 0.5)), with mean
    1; unknown ones have least."""
    made = {}
    for init in ("idf", "normal"):
        torch.manual_seed(0)
        made[init] = Static(dimensions=6, vocabulary=60, max_length=LENGTH, init=init).build(CORPUS)  # type: ignore[arg-type]
    tokenizer = made["idf"].tokenizer
    held = [set(tokenizer.encode(text).ids) for text in CORPUS]
    counts = np.array(
        [sum(token in ids for ids in held) for token in range(tokenizer.get_vocab_size())]
    )
    scale = np.maximum(np.log((len(CORPUS) + 1) / (counts + 0.5)), 0.05)
    scale[tokenizer.token_to_id("[UNK]")] = 0.05
    want = made["normal"].embedding.weight * torch.from_numpy(scale / scale.mean()).float()[:, None]
    torch.testing.assert_close(made["idf"].embedding.weight, want)
    torch.manual_seed(0)
    again = Static(dimensions=6, vocabulary=60, max_length=LENGTH, init="idf").again(made["idf"])
    assert torch.equal(again.embedding.weight, made["idf"].embedding.weight)


def test_vectors_begin_with_those_of_a_teacher(tmp_path: Path) -> None:
    """Similarities of first vectors are those of the teacher's vectors less their mean, in the best
    3 dimensions, weighted."""
    asked = list[str]()

    def embed(model: Path, role: str, texts: Sequence[str], progress: str | None) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 5)).astype(np.float32)

    (tmp_path / "modules.json").write_text("[]")
    options = Static(dimensions=3, vocabulary=60, max_length=LENGTH, teacher=str(tmp_path))
    tower = options.build(CORPUS, embed)
    assert asked == sorted(tower.tokenizer.get_vocab(), key=tower.tokenizer.get_vocab().__getitem__)
    read = embed(Path("model"), "doc", list(asked), "").astype(np.float64)
    u, s, _ = np.linalg.svd(read - read.mean(0), full_matrices=False)
    counts = Counter(token for text in CORPUS for token in tower.tokenizer.encode(text).ids)
    p = np.array([counts[token] for token in range(len(read))]) / sum(counts.values())
    want = u[:, :3] * s[:3] * (1e-3 / (1e-3 + p))[:, None]
    want /= np.sqrt(np.mean(np.sum(want**2, 1)))
    vectors = tower.embedding.weight.detach().numpy()
    np.testing.assert_allclose(vectors @ vectors.T, want @ want.T, atol=1e-5)
    assert torch.equal(options.again(tower).embedding.weight, tower.embedding.weight)
    wide = Static(vocabulary=60, teacher=str(tmp_path)).build(CORPUS, embed)
    assert wide.embedding.embedding_dim == 5  # at most that of the teacher


def test_a_static_teacher_gives_its_tokenizer_whatever_the_width(tmp_path: Path) -> None:
    """The recipe's first tower is narrower than one that goes on from 6 dimensions, and reads texts
    as that one does."""
    made = StaticTower(train_tokenizer(["other words than those of the corpus"], 40, LENGTH), 6)
    made.save(tmp_path)
    narrow, wide = (Static(dimensions=width, teacher=str(tmp_path)) for width in (3, 512))
    first = narrow.build(CORPUS)
    assert (
        first.embedding.weight.shape[1] == 3 and first.tokenizer.to_str() == made.tokenizer.to_str()
    )
    for tower in (wide.build(CORPUS), wide.again(first)):
        assert torch.equal(tower.embedding.weight, made.embedding.weight)
        assert tower.tokenizer.to_str() == made.tokenizer.to_str()
    assert torch.equal(narrow.again(first).embedding.weight, first.embedding.weight)
    assert wide.race(3_000, 20).start[DIMENSIONS] == wide.race(30_000, 20).start[DIMENSIONS] == 6


def test_a_table_in_half_precision_is_trained_in_single(tmp_path: Path) -> None:
    made = StaticTower(train_tokenizer(CORPUS, 60, LENGTH), 4)
    made.embedding.weight.data = made.embedding.weight.data.half()
    made.save(tmp_path)
    tower = Static(dimensions=4, teacher=str(tmp_path)).build(CORPUS)
    assert tower.embedding.weight.dtype == torch.float32
    assert torch.equal(tower.embedding.weight, made.embedding.weight.float())


def test_vectors_begin_near_those_with_the_same_character_ngrams() -> None:
    """Cosines of first vectors are 0.7 of those of the tokens' n-grams, weighted by their rarity;
    lengths are the frequencies'."""
    tokens = ["parse", "parser", "parsing", "date", "dates", "x"]
    torch.manual_seed(0)
    vectors = Subwords.of(tokens).vectors(20_000)  # so wide that what is random in cosines is small
    grams = [
        {f"<{token}>"[i : i + size] for size in (3, 4, 5, 6) for i in range(len(token) + 3 - size)}
        for token in tokens
    ]
    holders = Counter(gram for each in grams for gram in each)
    names = sorted(gram for gram, many in holders.items() if many > 1)
    by_hand = np.array(
        [[np.log(7 / (holders[gram] + 0.5)) * (gram in each) for gram in names] for each in grams]
    )
    by_hand /= np.maximum(np.linalg.norm(by_hand, axis=1, keepdims=True), 1e-9)
    want = 0.7 * by_hand @ by_hand.T
    np.fill_diagonal(want, 1)
    np.testing.assert_allclose((vectors @ vectors.T).numpy(), want, atol=0.03)
    torch.manual_seed(0)
    tower = Static(dimensions=6, vocabulary=60, max_length=LENGTH).build(CORPUS)
    assert tower.scale is not None
    torch.testing.assert_close(tower.embedding.weight.norm(dim=1), tower.scale)
    torch.manual_seed(0)
    again = Static(dimensions=6, vocabulary=60, max_length=LENGTH).again(tower)
    assert torch.equal(again.embedding.weight, tower.embedding.weight)


def test_tokens_without_common_ngrams_begin_at_random() -> None:
    vectors = Subwords.of(["a", "b"]).vectors(5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_the_tokenizer_reads_an_even_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera.towers import static, tokenizer

    read: list[list[str]] = []
    train_tokenizer = static.train_tokenizer

    def spy(texts: list[str], *options: int) -> object:
        read.append(list(texts))
        return train_tokenizer(texts, *options)

    monkeypatch.setattr(static, "train_tokenizer", spy)
    monkeypatch.setattr(tokenizer, "_SAMPLED_TEXTS", 5)
    texts = [f"word text {i}" for i in range(12)]
    for count in (4, 5, 6, 12):
        Static(4, 50).build(texts[:count])
    assert [len(sample) for sample in read] == [4, 5, 3, 4] and read[-1] == texts[::3]


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def other_table(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"embedding.weight": np.ones((3, 6), np.float32)}, folder / "model.safetensors")


def other_name(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.ones((60, 6), np.float32)}, folder / "model.safetensors")


MODULES = "{0}/modules.json does not describe a model"
UNREADABLE = "{0} is not a readable static embedding: "


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "{0} is not a saved model: modules.json is missing"),
        (
            lambda folder: (shutil.rmtree(folder), folder.write_text("")),
            "{0} is not a saved model: modules.json is",
        ),
        (
            lambda folder: (folder / "modules.json").unlink(),
            "{0} is not a saved model: modules.json is missing",
        ),
        (edit("modules.json", lambda text: b""), MODULES),
        (edit("modules.json", lambda text: text[:50]), MODULES),
        (edit("modules.json", lambda text: b"\xff" + text), MODULES),
        (edit("modules.json", lambda text: b"3"), MODULES),
        (edit("modules.json", lambda text: b'{"type": "x"}'), MODULES),
        (edit("modules.json", lambda text: b"[1]"), MODULES),
        (edit("modules.json", lambda text: b'[{"type": 1, "path": ""}]'), MODULES),
        (edit("modules.json", lambda text: text.replace(b'"type"', b'"kind"')), MODULES),
        (edit("modules.json", lambda text: text.replace(b'"path"', b'"paths"')), MODULES),
        (lambda folder: (folder / "tokenizer.json").unlink(), UNREADABLE),
        (edit("tokenizer.json", lambda text: b""), UNREADABLE),
        (edit("tokenizer.json", lambda text: text[:-100]), UNREADABLE),
        (edit("tokenizer.json", lambda text: b"{}"), UNREADABLE),
        (lambda folder: (folder / "model.safetensors").unlink(), UNREADABLE),
        (edit("model.safetensors", lambda data: b""), UNREADABLE),
        (edit("model.safetensors", lambda data: data[:-1]), UNREADABLE),
        (edit("model.safetensors", lambda data: b"\xff" * 64 + data[64:]), UNREADABLE),
        (other_name, UNREADABLE),
        (other_table, "{0} is damaged: (3, 6) embeddings for 49 tokens"),
    ],
)
def test_damaged_models(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(DataError) as error:
        load(copy)
    assert str(error.value).startswith(message.format(copy)) and "\n" not in str(error.value)


@pytest.mark.parametrize("first", [0, 100_000])
def test_a_tokenizer_that_names_tokens_without_a_vector_is_refused(copy: Path, first: int) -> None:
    about = json.loads((copy / "tokenizer.json").read_text())
    rows = len(
        about["model"]["vocab"]
    )  # the first of all tokens is the padding, which no text holds
    about["model"]["vocab"] = {
        token: number + rows + first - 1 for token, number in about["model"]["vocab"].items()
    }
    about["added_tokens"] = []
    (copy / "tokenizer.json").write_text(json.dumps(about))
    with pytest.raises(
        DataError,
        match=rf"is damaged: its tokenizer names token {rows + first}, and it has {rows} embeddings",
    ):
        load(copy)(["\u00f8"])  # the second is the unknown one
    with pytest.raises(
        DataError, match=r"is damaged: its tokenizer names token \d+, and it has \d+ embeddings"
    ):
        load(copy)(["the mail"])


def test_a_tokenizer_without_the_token_of_unknown_words_is_named(copy: Path) -> None:
    edit(
        "tokenizer.json", lambda text: text.replace(b'"unk_token": "[UNK]"', b'"unk_token": "[UK]"')
    )(copy)
    encode = load(copy)
    assert b'"[UK]"' in (copy / "tokenizer.json").read_bytes()
    with pytest.raises(
        DataError, match=r"has a tokenizer that reads no texts: Unk token `\[UK\]` not found"
    ):
        encode(["☃ \u2d30"])


def test_padding_that_another_program_has_stored_is_not_read(
    copy: Path, by_hand: np.ndarray
) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.enable_padding(pad_token="[PAD]")
    tokenizer.save(str(copy / "tokenizer.json"))
    close(load(copy)(TEXTS), by_hand)


def test_without_sentence_transformers_the_command_that_installs_it_is_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("modules.json", lambda text: text.replace(b"models.Normalize", b"models.Dense"))(copy)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingLibrary) as error:
        load(copy)
    assert (
        str(error.value)
        == f"opening {copy} needs sentence-transformers: pip install 'tempera[text]'"
    )


@pytest.mark.parametrize(
    "form", ["bf16", "embeddings", "float16", "mapping", "mapping and weights", "weights and bf16"]
)
def test_tables_in_other_forms_have_the_vectors_of_sentence_transformers(
    copy: Path, form: str
) -> None:
    st = pytest.importorskip("sentence_transformers")
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    table, draw = (
        load_file(copy / "model.safetensors")["embedding.weight"],
        torch.Generator().manual_seed(0),
    )
    table = table.bfloat16() if "bf16" in form else table.half() if "float16" in form else table
    tensors = {"embedding.weight" if form == "bf16" else "embeddings": table}
    if "mapping" in form:  # of which several tokens have one vector
        tensors |= {
            "embeddings": table[:9].clone(),
            "mapping": torch.randint(9, (len(table),), generator=draw),
        }
    if "weights" in form:
        tensors["weights"] = torch.rand(len(table), generator=draw, dtype=torch.float64) + 0.1
    save_file(tensors, copy / "model.safetensors")
    model = st.SentenceTransformer(str(copy), device="cpu", local_files_only=True).float()
    theirs = model.encode(TEXTS, normalize_embeddings=True)
    close(load(copy)(TEXTS), theirs)
    exported = exportable(copy)
    rows = [
        Tokenizer.from_str(exported.tokenizer).encode(text, add_special_tokens=False).ids
        for text in TEXTS
    ]
    ids = [torch.tensor([row or [0]]) for row in rows]
    found = [
        exported.module(each, torch.full_like(each, bool(row)))[0]
        for each, row in zip(ids, rows, strict=True)
    ]
    close(torch.stack(found).detach().numpy(), theirs)


def test_a_static_teacher_with_more_rows_than_tokens_goes_on(
    copy: Path, by_hand: np.ndarray, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    table = load_file(copy / "model.safetensors")["embedding.weight"]
    save_file(
        {"embedding.weight": torch.cat([table, torch.ones(7, 6)])}, copy / "model.safetensors"
    )
    options = Static(dimensions=6, teacher=str(copy))
    tower = options.build(CORPUS)
    for each in (tower, options.again(tower)):
        close(each.encode(each.features(TEXTS)).numpy(), by_hand)
    tower.save(tmp_path / "saved")
    close(load(tmp_path / "saved")(TEXTS), by_hand)


def test_the_merged_model_of_a_kept_index_embeds_queries_alone(
    folder: Path, copy: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    edit("model.safetensors", lambda data: data[:-4] + b"\0\0\0\0")(copy)
    note = Kept("0123", None, 9, 6)
    note.write(copy)
    merged = Merged(copy, folder)
    merged.at(0.5)
    merged.save(tmp_path / "merged")
    assert Kept.read(tmp_path / "merged") == note and load(tmp_path / "merged")(TEXTS).shape == (
        len(TEXTS),
        6,
    )
    with pytest.raises(
        DataError, match=r"embeds queries alone, for the index that its kept_index\.json describes"
    ):
        load(tmp_path / "merged", "doc")
    Merged(folder, copy).save(tmp_path / "both")  # of a trained model for documents, too
    assert Kept.read(tmp_path / "both") is None and load(tmp_path / "both", "doc")(TEXTS).any()
