"""A small transformer from scratch, for corpora with words unknown to pretrained models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from ..errors import ConfigError
from ..io.console import quietly
from ..io.require import require
from .modules import TextTower, tower_of
from .pair import Embed, Tower, batch_of, epochs_of
from .pretrained import compile_model
from .saved import embedded
from .sides import Sides, divided
from .tokenizer import sample, train_tokenizer
from .word_ids import UNKNOWN

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_FIRST = "[CLS]"


@dataclass(frozen=True)
class Transformer:
    """A BERT (Devlin et al. 2019) with random weights, mean pooling, and a tokenizer trained on the
    corpus.

    Args:
        layers: of attention and feed-forward.
        width: of the embeddings and of every layer; feed-forward layers are 4 times as wide.
        heads: of attention; divide the width.
        vocabulary: pieces of the tokenizer.
        max_length: longer texts are cut to `max_length` tokens; the first token stands for the
            text.
        dropout: of hidden states and attention.
        sides: "one" tower for queries and documents, two "heads" on a shared tower, or "two"
            towers.
        torch_compile: compile the transformer; pays on long runs, for the first steps take minutes.

    Raises:
        ConfigError: heads that do not divide the width, or a corpus without words.
    """

    learning_rate: ClassVar[float] = 5e-4

    layers: Annotated[int, Field(gt=0)] = 4
    width: Annotated[int, Field(gt=0)] = 256
    heads: Annotated[int, Field(gt=0)] = 4
    vocabulary: Annotated[int, Field(gt=0)] = 32_000
    max_length: Annotated[int, Field(gt=1)] = 256
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    sides: Sides = "one"
    torch_compile: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"{self.heads} heads do not divide a width of {self.width}: give a multiple of the heads"
            )

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return a batch of a sixteenth of the pairs, up to 512, and 10 epochs of few pairs to 4 of
        many."""
        return batch_of(pairs, 16, 32, 512), epochs_of(pairs, 80_000, 4, 10)

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> Tower:
        """An untrained tower, with a tokenizer trained on (an even sample of) the texts."""
        return self._tower(train_tokenizer(sample(texts), self.vocabulary, self.max_length))

    def again(self, tower: Tower) -> Tower:
        """An untrained tower with the tokenizer of another tower."""
        doc = tower.of("doc")
        assert isinstance(doc, TextTower)
        return self._tower(Tokenizer.from_str(doc.model.tokenizer.backend_tokenizer.to_str()))

    def _tower(self, tokenizer: Tokenizer) -> Tower:
        model = divided(self._model(tokenizer), self.sides)
        if self.torch_compile:
            compile_model(model)
        return tower_of(model)

    def _model(self, tokenizer: Tokenizer) -> SentenceTransformer:
        require("text", "a transformer tower")
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

        tokenizer.add_special_tokens([_FIRST])  # so that no text is without tokens
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_FIRST} $A", special_tokens=[(_FIRST, tokenizer.token_to_id(_FIRST))]
        )
        config = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=self.max_length,
            pad_token_id=tokenizer.token_to_id("[PAD]"),
            architectures=["BertModel"],
        )
        reader = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer,
            pad_token="[PAD]",
            unk_token=UNKNOWN,
            cls_token=_FIRST,
            model_max_length=self.max_length,
        )
        with (
            quietly(),
            TemporaryDirectory() as folder,
        ):  # the one way into sentence-transformers is through files
            # Written by hand: transformers writes a model on the first of several processes only.
            config.save_pretrained(folder)
            save_file(
                BertModel(config).state_dict(), Path(folder) / "model.safetensors", {"format": "pt"}
            )
            reader.save_pretrained(folder)
            body = modules.Transformer(folder)
        parts = [body, modules.Pooling(self.width, "mean"), modules.Normalize()]
        return SentenceTransformer(modules=parts, device="cpu")
