"""Any sentence-transformers model, to be trained further: transformer, pooling, dense, static,
prompts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from ..errors import ConfigError
from ..io.console import logger, quietly
from ..io.manifest import refuse_damaged
from ..io.require import require
from ..io.untrusted import without_panics
from .lora import Lora, transformers_of
from .modules import tower_of
from .pair import Embed, Tower, batch_of, epochs_of
from .saved import embedded, fingerprint, holds_whole_numbers, is_static, said, static_model
from .sides import Sides, divided
from .similarities import Similarity
from .static import Static

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Attention = Literal["eager", "sdpa", "flash_attention_2"]


@dataclass(frozen=True)
class Pretrained:
    """A sentence-transformers model, by folder or by name on the Hugging Face hub.

    Args:
        model: a local folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        max_length: longer texts are cut to `max_length` tokens, special tokens included; None is
            the model's own limit.
        query_prompt: the text before every query; None is the model's own prompt for queries, if
            the model has one.
        doc_prompt: the text before every document; None is the model's own.
        sides: "one" tower for queries and documents, two "heads" on a shared tower, or "two"
            towers.
        lora: train low-rank adapters and leave the model's own weights; None trains all weights.
        attn_implementation: flash_attention_2 (on a GPU, in half precision) reads texts without
            padding; None is the model's own.
        torch_compile: compile the transformer; pays on long runs, for the first steps take minutes.
        trust_remote_code: run the code in the model's folder.
    """

    model: str
    max_length: Annotated[int, Field(gt=0)] | None = None
    query_prompt: str | None = None
    doc_prompt: str | None = None
    sides: Sides = "one"
    lora: Lora | None = None
    attn_implementation: Attention | None = None
    torch_compile: bool = False
    trust_remote_code: bool = False

    @property
    def learning_rate(self) -> float:
        """Return 5e-5, near the best rate on most sets, and less harmful where there is nothing to
        learn; 2e-4 for adapters; the rate of `Static` for a static embedding."""
        if self._static:
            return Static.learning_rate
        if self.lora is not None:
            return 2e-4
        return 5e-5

    @property
    def mixed_precision(self) -> Literal["auto", "no"]:
        """Return "auto" for a transformer: in bf16 a step of 64 pairs costs half, and no difference
        in quality is shown. A static embedding multiplies no matrices, and takes "no"."""
        return "no" if self._static else "auto"

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return the batch size, 16 to 64, and the epochs, from 3 for few pairs to 1 for many; for
        a static embedding those of `Static`.

        More steps teach more than more negatives, so an epoch has about 200 batches. With `large`
        (a GPU, or bf16 on a CPU) about 24 are enough: on a GPU a step costs its launches whatever
        its size, and in bf16 on a CPU a pair in a batch of 64 costs half of a pair in a batch of
        16.
        """
        if self._static:
            return Static().schedule(pairs)
        batches = 24 if large else 200
        return batch_of(pairs, batches, 16, 64), epochs_of(pairs, 30_000, 1, 3)

    @property
    def _static(self) -> bool:
        """True if the model is a static embedding, by its folder, the hub's cache, or its
        modules.json on the hub: a transformer's rates and batches would be too small."""
        folder = _files(self.model)
        if folder is None and _is_hub_name(self.model):
            folder = _fetched(self.model)
        return folder is not None and is_static(folder)

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> Tower:
        """Return the model as saved; neither `texts` nor `embed` is needed for that.

        Raises:
            ConfigError: there is no such model, or an option does not suit the model.
        """
        attention: dict[str, Any] = {}
        if self.attn_implementation is not None:
            attention["attn_implementation"] = self.attn_implementation
        model = open_model(self.model, self.trust_remote_code, attention)
        distance = model.similarity_fn_name
        if distance not in get_args(Similarity):
            logger.warning(
                f"{self.model} compares by {distance}, by which nothing is trained here: it compares by objective.similarity "
                "from now on"
            )
            model.similarity_fn_name = "cosine"
        if self.max_length is not None:
            _limit(model, self.max_length)
        if self.query_prompt is not None:
            model.prompts["query"] = self.query_prompt
        if self.doc_prompt is not None:
            model.prompts["document"] = self.doc_prompt
        model = divided(model, self.sides)
        if self.lora is None:
            tower = tower_of(model, nullcontext, self._origin())
        else:
            self.lora.add_to(model)
            tower = tower_of(model, self.lora.saving, self._origin())
        if self.torch_compile:
            compile_model(model)
        return tower

    def _origin(self) -> str:
        """Return a hash of the model's files, and the other options; "" for a model whose vectors
        are not stored: a static embedding, a model with code of its own, or one without a folder."""
        folder = _files(self.model)
        if folder is None or self._static or self.trust_remote_code:
            return ""
        return f"{fingerprint(folder)} {replace(self, model='')}"

    def again(self, tower: Tower) -> Tower:
        """Return the model as saved, once more."""
        return self.build([])


def _place(name: str) -> Path:
    """Return a path as the folder of a model; for the folder of a run, the folder `model` in it."""
    folder = Path(name).expanduser()
    if (folder / "model" / "modules.json").is_file():
        return folder / "model"
    return folder


def _files(name: str) -> Path | None:
    """Return the folder of a model's files, possibly in the hub's cache; None without a folder."""
    folder = _place(name)
    if folder.is_dir():
        return folder
    if name.count("/") != 1:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # without the library, nothing is in its cache
        return None
    file = try_to_load_from_cache(name, "modules.json")
    if isinstance(file, str):
        return Path(file).parent
    return None


@cache  # a process asks the hub once for each name
def _fetched(name: str) -> Path | None:
    """Return the folder in the hub's cache that a model's modules.json is fetched into, without the
    other files; None if the file cannot be fetched."""
    try:
        from huggingface_hub import hf_hub_download

        with quietly():
            return Path(hf_hub_download(name, "modules.json")).parent
    except Exception:  # no library, no network, no access, no such model or file
        return None


def _is_hub_name(name: str) -> bool:
    """Return True if a name can be a name of the hub, owner/name, and is not meant as a folder."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return False
    return not _place(name).is_dir() and not _models_beside(name)


def _models_beside(name: str) -> list[str]:
    """Return the names of the models in the folder that would hold the folder `name`."""
    return [each.parent.name for each in sorted(_place(name).parent.glob("*/modules.json"))]


def open_model(
    name: str, trust_remote_code: bool = False, model_options: dict[str, Any] | None = None
) -> SentenceTransformer:
    """Open a model in single precision on the CPU, with its saved settings.

    Raises:
        ConfigError: there is no such model.
    """
    require("text", "a pretrained tower")
    from sentence_transformers import SentenceTransformer

    folder = _place(name)
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"tower.model: there is no folder {name}")
    beside = []
    if "/" in name and not folder.is_dir():
        beside = _models_beside(name)
    if beside:  # with models beside it, `name` is hardly a name of the hub
        raise ConfigError(
            f"tower.model: there is no folder {name}; {folder.parent} has {', '.join(beside)}"
        )
    refuse_damaged(folder)
    # The path is absolute, since an adapter that is saved alone names the model that it belongs to.
    source = str(folder.resolve()) if folder.is_dir() else name
    try:
        with quietly(), without_panics():
            model = SentenceTransformer(
                source,
                device="cpu",
                trust_remote_code=trust_remote_code,
                model_kwargs=model_options or None,
            )
    except Exception as error:  # whatever its modules, the hub or the tokenizer raise
        files = _files(name)
        if files is not None and holds_whole_numbers(files):
            return static_model(files)
        raise ConfigError(
            f"tower.model: sentence-transformers does not open {name}: {said(error)}"
        ) from None
    return model.float()


def compile_model(model: SentenceTransformer) -> None:
    """Have torch compile a model at its first call; lengths may vary.

    Raises:
        ConfigError: no transformer, or no C++ compiler.
    """
    if not transformers_of(model):
        raise ConfigError(
            "tower.torch_compile is for transformers, and this model has none: drop it"
        )
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise ConfigError(
            "tower.torch_compile needs a C++ compiler, and there is none: install g++ or drop it"
        )
    model.compile(dynamic=True)


def _limit(model: SentenceTransformer, max_length: int) -> None:
    known = {} if model.config is None else model.config.to_dict()
    most = known.get("max_position_embeddings")
    for name, module in model.named_modules():
        if name.endswith("position_embeddings"):
            padding = getattr(module, "padding_idx", None)
            if padding is not None:  # RoBERTa and its like count positions from after the padding's
                most = module.num_embeddings - padding - 1
    if most is not None and max_length > most > 0:
        raise ConfigError(
            f"tower.max_length is {max_length} and the model has {most} positions: give at most {most}"
        )
    if not transformers_of(model):
        raise ConfigError("tower.max_length is for transformers, and this model has none: drop it")
    for transformer in transformers_of(model):
        transformer.max_seq_length = max_length
