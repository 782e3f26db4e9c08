"""A saved model as a function of texts, by the lightest means there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..io.atomic import EXPORTS
from ..io.console import quietly
from ..io.documents import parsed, read_json, write_json
from ..io.manifest import MANIFEST, PART, refuse_damaged
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

# In the folder of a query model: facts about the index that the model was trained for.
KEPT = "kept_index.json"
Encode = Callable[[Sequence[str]], NDArray[np.float32]]
# Is called with the number of tokens that were read together, and with that number and the padding.
Count = Callable[[int, int], None]
# The folder of a run's model.
MODEL = "model"
# The folder of the model that was evaluated, if the run's model has then learned the held-out
# pairs, too.
EVALUATED = "evaluated"
# In a run and in its evaluated model: ids of the contents of the training queries, rising, [u].
TRAINED = "trained.npy"
_SETTINGS = "config_sentence_transformers.json"
_STATIC = ["StaticEmbedding"]
_STATIC_UNIT = ["StaticEmbedding", "Normalize"]
# The data types of safetensors, by the names that numpy has for them.
_NUMPY_TYPES = {
    f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "FIU" for bits in (8, 16, 32, 64)
}


class StaticParts(NamedTuple):
    """Hold the tokenizer and the table, [v, D], of a static embedding."""

    tokenizer: Tokenizer
    table: NDArray[np.float32]


def model_folder(path: Path) -> Path:
    """Return the folder of a saved model of texts: `path` itself, or the model of the run folder
    `path`.

    Raises:
        DataError: neither folder holds a model.
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
    folder: Path,
    role: Role = "query",
    half: bool = False,
    device: torch.device | str = "cpu",
    count: Count | None = None,
) -> Encode:
    """Return the function from texts to vectors, [n, D], of the model in a sentence-transformers
    folder, with its prompt for queries or documents.

    The inner product of two vectors is the similarity of the saved model (`similarity_of`). The
    vectors have length 1 for cosine, and are as the model gives them for dot.

    A static embedding with normalisation and without prompts needs numpy only, and answers long
    before torch would be loaded. Every other model is opened by sentence-transformers.

    Args:
        folder: of the saved model.
        role: "query" or "doc".
        half: compute in bf16.
        device: on which sentence-transformers computes.
        count: is called with the numbers of tokens read, by models that Tempera itself reads for.

    Raises:
        DataError: the folder holds no model, a damaged model, a model with a part outside of the
            folder, or a model with a distance in place of a similarity.
    """
    refuse_unsafe(folder)
    refuse_damaged(folder)
    if role == "doc" and (folder / KEPT).is_file():
        raise DataError(
            f"{folder} embeds queries alone, for the index that its {KEPT} describes, and documents are needed here, too: search "
            "that index with it, or judge it by what its run has held out: tempera evaluate RUN"
        )
    kinds = []
    paths = []
    try:
        for module in read_json(folder / "modules.json"):
            kinds.append(_kind_of(module))
            paths.append(inside(folder, module["path"]))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not a saved model: modules.json is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{folder}/modules.json does not describe a model") from None
    similarity = similarity_of(folder)
    if kinds == _STATIC_UNIT and not _has_prompts(folder) and similarity == "cosine":
        return _static_encoder(paths[0], truncation(folder), count)
    return encoder_of(open_with_library(folder).to(device), role, folder, half, count)


def reads_alike(folder: Path) -> bool:
    """Return True if a saved model reads queries as it reads documents: without prompts, and
    without modules for a role."""
    kinds = kinds_of(folder)
    if "Router" in kinds or "Asym" in kinds:
        return False
    return not _has_prompts(folder)


def kinds_of(folder: Path) -> list[str]:
    """Return the class names of a saved model's modules; none if modules.json does not say."""
    try:
        return [_kind_of(module) for module in read_json(folder / "modules.json")]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _kind_of(module: dict[str, str]) -> str:
    return module["type"].rsplit(".", 1)[-1]


def is_static(folder: Path) -> bool:
    """Return True if a saved model looks vectors up, without multiplications; any modules may
    follow."""
    return kinds_of(folder)[:1] == _STATIC


def similarity_of(folder: Path) -> Similarity:
    """Return the similarity of a saved model: cosine, also of a model with vectors of length 1, or
    dot.

    Raises:
        DataError: the model has a distance, or an unknown similarity.
    """
    whole = truncation(folder) is None
    unit = whole and kinds_of(folder)[-1:] == ["Normalize"]
    return compared_by(_settings(folder).get("similarity_fn_name"), unit, folder)


def write_similarity(folder: Path, similarity: Similarity) -> None:
    """Write the similarity of vectors into the settings of a saved model."""
    settings = read_json(folder / _SETTINGS)
    settings["similarity_fn_name"] = similarity
    write_json(folder / _SETTINGS, settings)


def prompts_of(folder: Path) -> dict[str, str]:
    """Return the prompts of a saved model for queries and documents; "" for none."""
    settings = _settings(folder)
    prompts = settings.get("prompts", {})
    default = settings.get("default_prompt_name")
    return {role: prompt_among(prompts, default, role) or "" for role in NAMES}


def _has_prompts(folder: Path) -> bool:
    return any(prompts_of(folder).values())


def truncation(folder: Path) -> int | None:
    """Return the number of a vector's first columns that a saved model keeps (`truncate_dim`); None
    keeps all."""
    width = _settings(folder).get("truncate_dim")
    return width if isinstance(width, int) else None


def _settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a saved model, written by sentence-transformers; none without a file
    of settings."""
    try:
        settings: dict[str, Any] = read_json(folder / _SETTINGS)
        prompts = {"query": "", "document": ""}  # as sentence-transformers fills them up
        for name, prompt in dict(settings.get("prompts") or {}).items():
            prompts[name] = prompt or ""
        settings["prompts"] = prompts
        return settings
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise DataError(f"{folder}/{_SETTINGS} does not describe a model") from None


def _first_module(folder: Path) -> Path:
    """Return the folder of a saved model's first module."""
    return inside(folder, read_json(folder / "modules.json")[0]["path"])


def static_parts(folder: Path) -> StaticParts | None:
    """Return the tokenizer and the table, [v, D], of a saved static embedding with normalisation;
    None for any other model."""
    if kinds_of(folder) != _STATIC_UNIT:
        return None
    tokenizer, table = read_static(_first_module(folder))
    return StaticParts(tokenizer, table[:, : truncation(folder)])


def read_static(folder: Path, is_mapped: bool = False) -> StaticParts:
    """Return the tokenizer and the table, [v, D], of a static embedding, from the folder of the
    module.

    Args:
        is_mapped: map a table in single precision into memory, instead of reading it: it is opened
            at once, and several processes share it, but it cannot be changed.

    Raises:
        DataError: a damaged file, or fewer rows than tokens.
    """
    from tokenizers import Tokenizer

    refuse_damaged(folder)

    try:
        with without_panics():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        path = folder / "model.safetensors"
        table = _mapped_table(path) if is_mapped else None
        if table is None:
            table = _read_table(path)
    except Exception as error:  # tokenizers raises no narrower one
        raise DataError(f"{folder} is not a readable static embedding: {error}") from None
    size = tokenizer.get_vocab_size()
    if table.ndim != 2 or len(table) < size:
        raise DataError(f"{folder} is damaged: {table.shape} embeddings for {size} tokens")
    tokenizer.no_padding()
    return StaticParts(tokenizer, table)


def _read_table(path: Path) -> NDArray[np.float32]:
    """Return the vectors of tokens in a file, in single precision, [v, D].

    A file of model2vec (Minish Lab) holds `embeddings`. It may hold the row of each token as
    `mapping`, and a factor for each token's vector as `weights`.
    """
    tensors = _read_tensors(path)
    if "embeddings" not in tensors:
        return tensors["embedding.weight"].astype(np.float32, copy=False)
    table = tensors["embeddings"]
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32, copy=False)
    if "weights" in tensors:
        table = table * tensors["weights"][:, None].astype(np.float32)
    return table


def _mapped_table(path: Path) -> NDArray[np.float32] | None:
    """Return the vectors of tokens in a file, [v, D], mapped into memory; None if they are not
    stored as they are."""
    from safetensors import safe_open

    name = "embedding.weight"
    with safe_open(path, framework="numpy") as file:  # refuses a damaged file
        names = list(file.keys())
        if name not in names or file.get_slice(name).get_dtype() != "F32":
            return None
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        about = parsed(file.read(size))[name]
    start, _ = about["data_offsets"]
    table = np.memmap(path, "<f4", "r", 8 + size + start, tuple(about["shape"]))
    return np.asarray(table)  # indexed faster than its own class


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file; bf16 becomes single precision, because numpy has no bf16."""
    from safetensors import deserialize, safe_open

    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        if not any(file.get_slice(name).get_dtype() == "BF16" for name in names):
            return {name: file.get_tensor(name) for name in names}
    tensors = {}
    for name, each in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
        if each["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(each["data"], "<u2").astype("<u4") << 16).view(np.float32)
        else:
            values = np.frombuffer(each["data"], _NUMPY_TYPES[each["dtype"]])
        tensors[name] = values.reshape(each["shape"])
    return tensors


def _static_encoder(folder: Path, width: int | None, count: Count | None = None) -> Encode:
    tokenizer, table = read_static(folder, is_mapped=True)
    table = table[:, :width]
    read = reader(tokenizer)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        texts = read_as_texts(texts)
        try:
            with without_panics():
                ids, lengths = read(texts)
        except Exception as error:  # tokenizers raises no narrower one
            raise DataError(f"{folder} has a tokenizer that reads no texts: {error}") from None
        if count is not None:
            count(len(ids), len(ids))
        vectors = np.zeros((len(texts), table.shape[1]), np.float32)
        if ids.max(initial=0) >= len(table):
            raise DataError(
                f"{folder} is damaged: its tokenizer names token {ids.max()}, and it has {len(table)} embeddings"
            )
        start = 0
        for end, vector in zip(lengths.cumsum().tolist(), vectors, strict=True):
            np.add.reduce(table.take(ids[start:end], axis=0), axis=0, out=vector)
            start = end
        norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        vectors /= np.maximum(norms, 1e-12)[:, None]
        return vectors

    return encode


def embedded(
    model: Path, role: Role, texts: Sequence[str], progress: str | None = None
) -> NDArray[np.float32]:
    """Embed texts by a saved model, or by the model of a run."""
    return load(model_folder(model), role)(texts)


def open_with_library(folder: Path) -> SentenceTransformer:
    """Open a saved model with sentence-transformers, on the CPU and without a network.

    The model is in single precision, for training and export, from weights of any precision.

    Raises:
        DataError: sentence-transformers does not open the folder.
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
    """Return True if a saved model is a static embedding with a table of whole numbers, as
    model2vec (Minish Lab) writes in int8; sentence-transformers does not open the model."""
    if kinds_of(folder) not in (_STATIC, _STATIC_UNIT):
        return False
    from safetensors import SafetensorError, safe_open

    module = _first_module(folder)
    try:
        with safe_open(module / "model.safetensors", framework="numpy") as file:
            names = list(file.keys())
            return any(file.get_slice(name).get_dtype().startswith("I") for name in names)
    except (OSError, SafetensorError):
        return False


def static_model(folder: Path) -> SentenceTransformer:
    """Return a static embedding with a table of whole numbers (`holds_whole_numbers`) as a model in
    single precision, with its saved settings.

    Raises:
        DataError: a damaged file.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    tokenizer, table = read_static(_first_module(folder))
    modules: list[Any] = [StaticEmbedding(tokenizer, embedding_weights=table)]
    if "Normalize" in kinds_of(folder):
        modules.append(Normalize())
    settings = _settings(folder)
    with quietly():
        return SentenceTransformer(
            modules=modules,
            device="cpu",
            prompts=settings.get("prompts"),
            default_prompt_name=settings.get("default_prompt_name"),
            similarity_fn_name=settings.get("similarity_fn_name"),
            truncate_dim=settings.get("truncate_dim"),
        )


def encoder_of(
    model: SentenceTransformer,
    role: Role,
    folder: Path,
    half: bool = False,
    count: Count | None = None,
) -> Encode:
    """Return the function from texts of a role to vectors, [n, D], of an open model; the inner
    products of the vectors are the model's similarity.

    A tower of token ids reads in blocks of like length. A model with further inputs is called
    through sentence-transformers.

    Args:
        model: is used unchanged.
        role: "query" or "doc".
        folder: named in errors.
        half: compute in bf16; the weights of a tower are cast once, for good.
        count: is called with the numbers of tokens that a tower reads.
    """
    import torch

    from ..layers.half import lower
    from .modules import TextTower, read_in

    try:
        tower = TextTower(model, role)
    except ConfigError:
        similarity = compared_by(model.similarity_fn_name, False, folder)
        return _library_encoder(model, role, folder, similarity)
    except Exception as error:  # whatever its modules raise
        raise DataError(f"{folder} is not a model that embeds texts: {said(error)}") from error
    compared_by(model.similarity_fn_name, tower.unit, folder)  # refuses a distance
    tower.eval()  # once: several threads may read by it
    if half:
        lower(tower.float(), torch.bfloat16)
        read_in(tower, torch.bfloat16)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        features = tower.features(texts, None, role)
        return tower.encode(features, role, count=count).numpy()

    return _guarded(encode, folder)


def _library_encoder(
    model: SentenceTransformer, role: Role, folder: Path, similarity: Similarity
) -> Encode:
    read: Any = model.encode_query if role == "query" else model.encode_document
    width = model.get_embedding_dimension() or -1
    unit = similarity == "cosine"

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = read(list(texts), show_progress_bar=False, normalize_embeddings=unit)
        return np.asarray(vectors, np.float32).reshape(len(texts), width)

    return _guarded(encode, folder)


def _guarded(encode: Encode, folder: Path) -> Encode:
    def guarded(texts: Sequence[str]) -> NDArray[np.float32]:
        texts = read_as_texts(texts)
        try:
            return encode(texts)
        except Exception as error:  # whatever its modules raise
            raise DataError(f"{folder} is not a model that embeds texts: {said(error)}") from error

    return guarded


def read_as_texts(texts: Any) -> list[str]:
    """Return the texts to embed as a list of texts for a tokenizer.

    Raises:
        DataError: `texts` is no list of texts.

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
    """Return the message of a library's error as a single line."""
    return " ".join(str(error).split())


def fingerprint(folder: Path) -> str:
    """Return a hash of all files of a saved model with an influence on vectors: weights,
    configuration, tokenizer, prompts; 32 hex digits.

    The model card, hidden files, exports, the manifest, the ids of training queries, and the
    calibration, made of the vectors, are left out.

    Raises:
        DataError: no such folder, or an empty folder.
    """
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    if not files:
        raise DataError(f"{folder} is not a saved model: there is no such folder, or it is empty")
    refuse_damaged(folder)
    digest = xxhash.xxh3_128()
    for name, path in sorted(files.items()):
        hidden = name.startswith(".") or "/." in name
        beside = name.startswith(("calibration.", TRAINED, MANIFEST, f"{EXPORTS}/"))
        if hidden or beside or path.suffix == ".md":
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while part := file.read(PART):
                digest.update(part)
    return digest.hexdigest()
