"""A saved model as a function of texts, by the lightest means there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..io.atomic import EXPORTS
from ..io.console import quietly
from ..io.documents import read_json, write_json
from ..io.manifest import MANIFEST, refuse_damaged
from ..io.require import require
from ..io.texts import encodable
from ..io.untrusted import inside, refuse_unsafe, without_panics
from .prompts import NAMES, prompt_among
from .similarities import Similarity, compared_by
from .word_ids import reader

if TYPE_CHECKING:  # it would load torch
    import torch
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    from ..core.batch import Role

# in the folder of a model of queries: facts about the index it was trained for
KEPT = "kept_index.json"
Encode = Callable[[Sequence[str]], NDArray[np.float32]]
# The model of a run, and the one that was judged, where the first has then learned what was held
# out.
MODEL, EVALUATED = "model", "evaluated"
# Of safetensors, as numpy writes them.
_KINDS = {
    f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "FIU" for bits in (8, 16, 32, 64)
}
# of a run and its evaluated model: ids of the contents of the training queries, rising, [u]
TRAINED = "trained.npy"


def model_folder(path: Path) -> Path:
    """Return the folder of a saved model of texts: `path` itself, or the model of the run folder
    `path`.

    Raises:
        DataError: neither of them holds a model.
    """
    for folder in (path / "model", path):
        if (folder / "modules.json").is_file():
            refuse_damaged(folder)
            return folder
    if (path / "model" / "items.parquet").is_file():
        raise DataError(f"{path} is a recommender, and this command is for models of texts")
    if not path.exists():
        raise DataError(f"no such folder: {path}; give that of a run or of a saved model")
    raise DataError(
        f"{path} is neither a saved model of texts nor a run with one: modules.json is missing"
    )


def load(
    folder: Path, role: Role = "query", half: bool = False, device: torch.device | str = "cpu"
) -> Encode:
    """Texts to vectors, [n, D], by the model in a sentence-transformers folder and its prompt for
    queries or documents.

    The inner product of two vectors is the similarity that the model was saved with
    (`similarity_of`): they have length 1 for cosine, and are as the model gives them for dot.

    A static embedding with normalisation and without prompts needs numpy only, and answers long
    before torch would be loaded; every other model is opened by sentence-transformers on a device,
    and with `half` computes in bf16.

    Raises:
        DataError: no model, a damaged one, one of which a part lies outside of the folder, or one
            that compares by a distance.
    """
    refuse_unsafe(folder)
    refuse_damaged(folder)
    if role == "doc" and (folder / KEPT).is_file():
        raise DataError(
            f"{folder} embeds queries alone, for the index that its {KEPT} describes, and documents are needed here, too: search "
            "that index with it, or judge it by what its run has held out: tempera evaluate RUN"
        )
    try:
        modules = read_json(folder / "modules.json")
        kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
        paths = [inside(folder, module["path"]) for module in modules]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not a saved model: modules.json is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{folder}/modules.json does not describe a model") from None
    similarity = similarity_of(folder)
    plain = kinds == ["StaticEmbedding", "Normalize"] and not _has_prompts(folder)
    if plain and similarity == "cosine":
        return _static(paths[0], truncation(folder))
    return encoder_of(opened(folder).to(device), role, folder, half)


def reads_alike(folder: Path) -> bool:
    """Return whether a saved model reads queries as it reads documents: without prompts, and
    without modules of their own."""
    return not {"Router", "Asym"} & {*kinds_of(folder)} and not _has_prompts(folder)


def kinds_of(folder: Path) -> list[str]:
    """Return the names of a saved model's modules; none where modules.json does not say."""
    try:
        return [module["type"].rsplit(".", 1)[-1] for module in read_json(folder / "modules.json")]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def is_static(folder: Path) -> bool:
    """Return whether a saved model looks vectors up, whatever modules follow, so that nothing is
    multiplied."""
    return kinds_of(folder)[:1] == ["StaticEmbedding"]


def similarity_of(folder: Path) -> Similarity:
    """Return the similarity that a saved model compares by: cosine, also of a model whose vectors
    all have length 1, or dot.

    Raises:
        DataError: a model that compares by a distance, or by something else.
    """
    whole = truncation(folder) is None
    unit = whole and kinds_of(folder)[-1:] == ["Normalize"]
    return compared_by(_about(folder).get("similarity_fn_name"), unit, folder)


def write_similarity(folder: Path, similarity: Similarity) -> None:
    """Write into a saved model by which similarity its vectors are to be compared."""
    path = folder / "config_sentence_transformers.json"
    write_json(path, {**read_json(path), "similarity_fn_name": similarity})


def prompts_of(folder: Path) -> dict[str, str]:
    """Return the prompts of a saved model for queries and documents; "" for none."""
    about = _about(folder)
    prompts, default = about.get("prompts", {}), about.get("default_prompt_name")
    return {role: prompt_among(prompts, default, role) or "" for role in NAMES}


def _has_prompts(folder: Path) -> bool:
    return any(prompts_of(folder).values())


def truncation(folder: Path) -> int | None:
    """Return the number of a vector's first columns that a saved model keeps (`truncate_dim`); None
    keeps all."""
    width = _about(folder).get("truncate_dim")
    return width if isinstance(width, int) else None


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = read_json(folder / "config_sentence_transformers.json")
        known = {name: prompt or "" for name, prompt in dict(about.get("prompts") or {}).items()}
        return {
            **about,
            "prompts": {"query": "", "document": "", **known},
        }  # as sentence-transformers fills them up
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise DataError(
            f"{folder}/config_sentence_transformers.json does not describe a model"
        ) from None


def static_parts(folder: Path) -> tuple[Tokenizer, NDArray[np.float32]] | None:
    """Return what `read_static` reads of a saved model that is a static embedding with
    normalisation; None for any other."""
    if kinds_of(folder) != ["StaticEmbedding", "Normalize"]:
        return None
    tokenizer, table = read_static(inside(folder, read_json(folder / "modules.json")[0]["path"]))
    return tokenizer, table[:, : truncation(folder)]


def read_static(folder: Path) -> tuple[Tokenizer, NDArray[np.float32]]:
    """Return the tokenizer and the table, [v, D], of a static embedding, which lie in the folder of
    its module.

    Raises:
        DataError: a damaged file, or fewer rows than tokens.
    """
    from tokenizers import Tokenizer

    refuse_damaged(folder)

    try:
        with without_panics():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        table = _table(folder / "model.safetensors")
    except Exception as error:  # tokenizers raises no narrower one
        raise DataError(f"{folder} is not a readable static embedding: {error}") from None
    if table.ndim != 2 or len(table) < tokenizer.get_vocab_size():
        raise DataError(
            f"{folder} is damaged: {table.shape} embeddings for {tokenizer.get_vocab_size()} tokens"
        )
    tokenizer.no_padding()
    return tokenizer, table


def _table(path: Path) -> NDArray[np.float32]:
    """Return the vectors of tokens in a file, in single precision, [v, D].

    A file of model2vec (Minish Lab) holds `embeddings`, and may say by `mapping` which of them a
    token has, and by `weights` what its vector is multiplied by.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        halves = any(file.get_slice(name).get_dtype() == "BF16" for name in names)
        tensors = _with_halves(path) if halves else {name: file.get_tensor(name) for name in names}
    if "embeddings" not in tensors:
        return tensors["embedding.weight"].astype(np.float32, copy=False)
    table = tensors["embeddings"]
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32, copy=False)
    return table * tensors["weights"][:, None].astype(np.float32) if "weights" in tensors else table


def _with_halves(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file that holds some in bf16, which numpy lacks, in single
    precision."""
    from safetensors import deserialize

    tensors = {}
    for name, each in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
        if each["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(each["data"], "<u2").astype("<u4") << 16).view(np.float32)
        else:
            values = np.frombuffer(each["data"], _KINDS[each["dtype"]])
        tensors[name] = values.reshape(each["shape"])
    return tensors


def _static(folder: Path, width: int | None) -> Encode:
    tokenizer, table = read_static(folder)
    table = table[:, :width]
    read = reader(tokenizer)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        texts = read_as_texts(texts)
        try:
            with without_panics():
                ids, lengths = read(texts)
        except Exception as error:  # tokenizers raises no narrower one
            raise DataError(f"{folder} has a tokenizer that reads no texts: {error}") from None
        vectors = np.zeros((len(texts), table.shape[1]), np.float32)
        if ids.max(initial=0) >= len(table):
            raise DataError(
                f"{folder} is damaged: its tokenizer names token {ids.max()}, and it has {len(table)} embeddings"
            )
        ends = lengths.cumsum().tolist()
        for start, end, vector in zip([0, *ends], ends, vectors, strict=False):
            np.add.reduce(table.take(ids[start:end], axis=0), axis=0, out=vector)
        vectors /= np.maximum(np.sqrt(np.einsum("nd,nd->n", vectors, vectors)), 1e-12)[:, None]
        return vectors

    return encode


def embedded(
    model: Path, role: Role, texts: Sequence[str], progress: str | None = None
) -> NDArray[np.float32]:
    """Embed texts by a saved model, or by that of a run."""
    return load(model_folder(model), role)(texts)


def opened(folder: Path) -> SentenceTransformer:
    """Open a saved model with sentence-transformers, on the CPU and without a network, in single
    precision, as it is trained and exported, whatever its weights were saved in.

    Raises:
        DataError: a folder that it does not open.
    """
    require("text", f"opening {folder}")
    refuse_damaged(folder)
    from sentence_transformers import SentenceTransformer

    try:
        with quietly(), without_panics():
            return SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    except Exception as error:  # whatever its modules raise
        if holds_whole_numbers(folder):
            return static_model(folder)
        raise DataError(
            f"{folder} is not a model that sentence-transformers opens: {said(error)}"
        ) from None


def holds_whole_numbers(folder: Path) -> bool:
    """Return whether a saved model is a static embedding with a table of whole numbers, as model2vec
    (Minish Lab) writes in int8; sentence-transformers does not open it."""
    if kinds_of(folder) not in (["StaticEmbedding"], ["StaticEmbedding", "Normalize"]):
        return False
    from safetensors import SafetensorError, safe_open

    place = inside(folder, read_json(folder / "modules.json")[0]["path"])
    try:
        with safe_open(place / "model.safetensors", framework="numpy") as file:
            return any(file.get_slice(name).get_dtype().startswith("I") for name in [*file.keys()])
    except (OSError, SafetensorError):
        return False


def static_model(folder: Path) -> SentenceTransformer:
    """Return a static embedding of which `holds_whole_numbers` is true as a model in single
    precision, with the settings that it was saved with.

    Raises:
        DataError: a damaged file.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    place = inside(folder, read_json(folder / "modules.json")[0]["path"])
    tokenizer, table = read_static(place)
    parts: list[Any] = [StaticEmbedding(tokenizer, embedding_weights=table)]
    if "Normalize" in kinds_of(folder):
        parts.append(Normalize())
    about = _about(folder)
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    settings: dict[str, Any] = {name: about.get(name) for name in names}
    with quietly():
        return SentenceTransformer(modules=parts, device="cpu", **settings)


def encoder_of(model: SentenceTransformer, role: Role, folder: Path, half: bool = False) -> Encode:
    """Return the function from texts of a role to vectors, [n, D], of an open model, whose inner
    products are the model's similarity; `folder` is named in errors.

    A tower of token ids reads in blocks of like length, with `half` in bf16, for which its weights
    are cast once, for good. What is none is read by sentence-transformers.
    """
    import torch

    from ..layers.half import lower
    from .modules import TextTower, read_in

    try:
        tower = TextTower(model, role)
    except ConfigError:
        return _by_library(
            model, role, folder, compared_by(model.similarity_fn_name, False, folder)
        )
    except Exception as error:  # whatever its modules raise
        raise DataError(f"{folder} is not a model that embeds texts: {said(error)}") from error
    compared_by(model.similarity_fn_name, tower.unit, folder)  # or refuse it
    tower.eval()  # once: several threads may read by it
    if half:
        lower(tower.float(), torch.bfloat16)
        read_in(tower, torch.bfloat16)
    return _guarded(
        lambda texts: tower.encode(tower.features(texts, None, role), role).numpy(), folder
    )


def _by_library(
    model: SentenceTransformer, role: Role, folder: Path, similarity: Similarity
) -> Encode:
    read: Any = model.encode_query if role == "query" else model.encode_document
    width = model.get_embedding_dimension() or -1
    options = {"show_progress_bar": False, "normalize_embeddings": similarity == "cosine"}
    return _guarded(
        lambda texts: np.asarray(read(list(texts), **options), np.float32).reshape(
            len(texts), width
        ),
        folder,
    )


def _guarded(encode: Encode, folder: Path) -> Encode:
    def guarded(texts: Sequence[str]) -> NDArray[np.float32]:
        texts = read_as_texts(texts)
        try:
            return encode(texts)
        except Exception as error:  # whatever its modules raise
            raise DataError(f"{folder} is not a model that embeds texts: {said(error)}") from error

    return guarded


def read_as_texts(texts: Any) -> list[str]:
    """Return what is to be embedded as texts that a tokenizer takes; raise DataError unless it is a
    list of texts.

    >>> read_as_texts(["a", None])
    Traceback (most recent call last):
        ...
    tempera.errors.DataError: text 2 is None; expected a str
    """
    if isinstance(texts, str):
        raise DataError(f"{texts[:40]!r} is one text; expected a list of texts")
    if not isinstance(texts, Iterable):
        raise DataError(f"{texts!r} is no list of texts")
    texts = list(texts)  # of a generator, which can be read once
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise DataError(f"text {number:,} is {text!r}; expected a str")
    return [encodable(text) for text in texts]


def said(error: Exception) -> str:
    """Return the message of an error of another library as one line."""
    return " ".join(str(error).split())


def fingerprint(folder: Path) -> str:
    """A hash of all files of a saved model that decide its vectors: weights, configuration,
    tokenizer, prompts; 32 hex digits.

    The model card, hidden files, exports, the manifest, what it was trained on, and the calibration
    that is made of its vectors are left out.

    Raises:
        DataError: no such folder, or an empty one.
    """
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    if not files:
        raise DataError(f"{folder} is not a saved model: there is no such folder, or it is empty")
    refuse_damaged(folder)
    digest = xxhash.xxh3_128()
    for name, path in sorted(files.items()):
        if (
            path.suffix == ".md"
            or name.startswith((".", "calibration.", TRAINED, MANIFEST, f"{EXPORTS}/"))
            or "/." in name
        ):
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
