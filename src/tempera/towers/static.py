"""Static embeddings: a text is the mean of its tokens' vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

from ..arithmetic.ragged import Ragged
from ..arithmetic.table import Table
from ..core.batch import Role
from ..io.documents import write_json
from ..task.rounds import DIMENSIONS, LEARNING_RATE, TEMPERATURE, Open, Race, Round, over
from .pair import Embed, Tower, batch_of, epochs_of
from .pieces import Pieces, Trained
from .saved import embedded, model_folder, static_parts
from .subwords import Subwords
from .tokenizer import sample, tokenize, train_tokenizer, vocabulary_of, without_repeats
from .word_ids import UNKNOWN

_COUNTED = 8_000  # texts in which tokens are counted; more change nothing on validation
_TEMPERATURES, _BEYOND = (0.05, 0.1), (0.035, 0.14)
# Of long texts, from so many tokens of all documents on: a third of the steps favours a high
# temperature, which loses in the end.
_OF_LONG, _MANY = 0.04, 250_000
_FACTORS = (1.0, 10 / 3, 1 / 3)  # of the tower's own learning rate
# Above so many pairs a race costs minutes; on 119,094 pairs of code the higher rate had nDCG@10
# 0.503, the lower 0.495.
MOST_PAIRS = 20_000
# Twice the width brings 0.000 to 0.009 nDCG@10 where the median document has fewer tokens than
# SHORT, and 0.010 to 0.022 where it has more, for 1.6 times the time
# (docs/results/text-recipe.md): up to so many tokens of all documents that is less than a minute.
# Settings are tried at half of it. The numbers of vectors that begin with length 1 are larger there
# by the root of 2, and so is the rate.
SHORT, _CHEAP, _WIDE = 64, 1_000_000, 1024
_NARROW = {DIMENSIONS: 0.5, LEARNING_RATE: math.sqrt(2)}
_AGAIN = 3  # negatives of a query that its own weights mine, before training goes on
_WEIGHTS = "tower.token_weights"  # on 119,456 pairs, at the highest rate, they lose 0.014
# times as fast as a vector a token's weight is learned; 10 brings more in the mean, and less where
# little is learned
_FASTER = 5
_LEAST = 0.05  # inverse document frequency of a token that every text holds


@dataclass(frozen=True)
class Static:
    """A static embedding trained from scratch, with a tokenizer trained on the corpus.

    Args:
        dimensions: width of the embeddings; from a teacher, at most that of its vectors.
        vocabulary: pieces of the tokenizer.
        max_length: longer texts are cut to this many tokens.
        drop_repeats: a word that stands again within the next ten words is left out, so that what a
            text repeats does not drown the rest of it. A static teacher's tokenizer stays as it is.
        token_weights: learn a weight w of each token, too. Its vector is multiplied by exp(5 w), so
            that words that tell little soon count less. A saved model holds the products.
        init: random vectors to begin with. "idf" scales a token's by its inverse document frequency
            in the training texts (Spärck Jones 1972), so that the untrained tower finds texts that
            share rare words, and training begins there; "ngrams" has tokens that share character
            n-grams begin near each other, too (Bojanowski et al. 2017), as "cell" and "cells" do;
            "normal" draws all of one scale, as other libraries do.
        teacher: folder of a saved model, or of a run, whose vectors of the tokens are those to
            begin with, in place of `init`. A static model gives its tokenizer, and in `dimensions`
            of at least its own its vectors as they are, so that its training goes on; a recipe
            takes its own.
    """

    learning_rate: ClassVar[float] = 0.003
    made_rows: ClassVar[int] = 4  # of long documents, beside each pair
    open: ClassVar[Mapping[str, Open]] = {
        TEMPERATURE: Open(beside=("objective.scale",)),
        LEARNING_RATE: Open(),
        DIMENSIONS: Open(beside=("tower.query",)),
        _WEIGHTS: Open(True, beside=("tower.query",)),
        "train.refit": Open("auto", raced=False),
        "mining.again": Open(_AGAIN, raced=False),
    }

    dimensions: Annotated[int, Field(gt=0)] = 512
    vocabulary: Annotated[int, Field(gt=0)] = 32_000
    max_length: Annotated[int, Field(gt=0)] = 1024
    drop_repeats: bool = True
    token_weights: bool = False
    init: Literal["ngrams", "idf", "normal"] = "ngrams"
    teacher: str | None = None

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return a batch of a sixteenth of the pairs, up to 2,048, and 8 epochs of few pairs to 4
        of many."""
        return batch_of(pairs, 16, 32, 2048), epochs_of(pairs, 55_000, 4, 8)

    def race(self, pairs: int, tokens: float) -> Race:
        """Return three learning rates, each for a sixth of the steps, then temperatures at the best
        of them for a third.

        These are 0.05 and 0.1, and if one of them is shown to be better, 0.035 or 0.14 beyond it.
        Many long texts have 0.04, and try the highest rate only if the one below it is shown to be
        better than the lowest.

        Short texts, and few long ones, are embedded in 1,024 dimensions, unless a teacher has a
        width of its own; their settings are tried at half the width.

        Without a race, many pairs take the highest rate, and where validation is too small to
        choose, the lowest: on two samples each of six sets, 50 pairs then bring 0.021 nDCG@10
        (0.008 at the tower's own rate), and 200 pairs 0.010 (-0.010).
        """
        rates = [float(f"{self.learning_rate * factor:.2g}") for factor in _FACTORS]
        taught = self._taught()
        start: dict[str, float] = (
            {} if taught is None else {DIMENSIONS: taught[1].shape[1]}
        )  # whose training goes on
        if pairs > MOST_PAIRS:
            return Race({**start, LEARNING_RATE: max(rates), _WEIGHTS: False})
        start |= {TEMPERATURE: _TEMPERATURES[0], LEARNING_RATE: self.learning_rate}
        if tokens >= SHORT and pairs * tokens >= _MANY:
            start[TEMPERATURE] = _OF_LONG
            tried = [rate for rate in rates if rate < max(rates)]
            rounds = [
                Round(6, over(LEARNING_RATE, tried), beyond=over(LEARNING_RATE, [max(rates)]))
            ]
        else:
            rounds = [Round(6, over(LEARNING_RATE, rates))]
            rounds.append(
                Round(3, over(TEMPERATURE, _TEMPERATURES), beyond=over(TEMPERATURE, _BEYOND))
            )
        wide = (tokens < SHORT or pairs * tokens <= _CHEAP) and self.teacher is None
        if wide:
            start[DIMENSIONS] = _WIDE
        return Race(start, rounds, {LEARNING_RATE: min(rates)}, _NARROW if wide else {})

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> StaticTower:
        """An untrained tower whose tokenizer has read (an even sample of) the texts."""
        if (taught := self._taught()) is not None:
            tokenizer, vectors = taught
            read = torch.from_numpy(vectors[: tokenizer.get_vocab_size()])
            narrow = (
                Pieces(read, frequency(tokenizer, texts))
                if self.dimensions < vectors.shape[1]
                else None
            )
            return self._after(*taught, narrow)
        tokenizer = train_tokenizer(sample(texts), self.vocabulary, self.max_length)
        if self.drop_repeats:
            tokenizer = without_repeats(tokenizer)
        if self.teacher is not None:
            read = torch.from_numpy(
                embed(Path(self.teacher), "doc", vocabulary_of(tokenizer), "embedding tokens")[:]
            )
            return self._tower(
                tokenizer,
                min(self.dimensions, *read.shape),
                None,
                Pieces(read, frequency(tokenizer, texts)),
            )
        scale = None if self.init == "normal" else inverse_frequency(tokenizer, texts)
        subwords = Subwords.of(vocabulary_of(tokenizer)) if self.init == "ngrams" else None
        return self._tower(tokenizer, self.dimensions, scale, subwords)

    def again(self, tower: Tower) -> StaticTower:
        """An untrained tower with the tokenizer of another one."""
        assert isinstance(tower, StaticTower)
        if (taught := self._taught()) is not None:
            return self._after(*taught, tower.start)
        width = self.dimensions if self.teacher is None else tower.embedding.embedding_dim
        return self._tower(tower.tokenizer, width, tower.scale, tower.start)

    def _tower(
        self, tokenizer: Tokenizer, width: int, scale: Tensor | None, start: Start | None
    ) -> StaticTower:
        return StaticTower(tokenizer, width, scale, start, self.token_weights)

    def _taught(self) -> tuple[Tokenizer, NDArray[np.float32]] | None:
        """Return the tokenizer and the vectors of a static teacher; None without one, or where
        there is no such folder."""
        if self.teacher is None or not Path(self.teacher).is_dir():
            return None
        return static_parts(model_folder(Path(self.teacher)))

    def _after(
        self, tokenizer: Tokenizer, vectors: NDArray[np.float32], narrow: Start | None
    ) -> StaticTower:
        """Return the tower that goes on from the vectors of a static teacher, or from `narrow`,
        where they have more dimensions."""
        width = vectors.shape[1]
        if self.dimensions < width and narrow is not None:
            return self._tower(tokenizer, self.dimensions, None, narrow)
        return self._tower(tokenizer, width, None, Trained(torch.from_numpy(vectors)))


def frequency(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return how often each token stands in an even sample of texts, [v]."""
    return torch.bincount(
        tokenize(tokenizer, sample(texts, _COUNTED)).values, minlength=tokenizer.get_vocab_size()
    )


def inverse_frequency(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return log((n + 1) / (texts that hold the token + 0.5)) of every token, by an even sample of
    n texts, with mean 1.

    >>> tokenizer = train_tokenizer(["a common word"] * 9 + ["a rare one"] * 2, 99, 9)
    >>> scale = inverse_frequency(tokenizer, ["a common word"] * 9 + ["a rare one"] * 2)
    >>> bool(scale[tokenizer.token_to_id("rare")] > 2 * scale[tokenizer.token_to_id("common")])
    True
    """
    chosen = sample(texts, _COUNTED)
    tokens, size = tokenize(tokenizer, chosen), tokenizer.get_vocab_size()
    rows = torch.repeat_interleave(tokens.lengths)
    holders = torch.bincount(torch.unique(rows * size + tokens.values) % size, minlength=size)
    scale = ((len(chosen) + 1) / (holders + 0.5)).log().clamp(min=_LEAST)
    scale[tokenizer.token_to_id(UNKNOWN)] = _LEAST  # what no training text holds tells nothing
    return scale / scale.mean()


class Start(Protocol):
    """Vectors of the tokens to begin with."""

    def vectors(self, dimensions: int) -> Tensor:
        """Return them in memory of their own, [v, D]."""


class StaticTower(Tower):
    """Token ids of n rows to embeddings, [n, D]: the mean of each row's token vectors; 0 for an
    empty row.

    With `weighted`, the vector of a token is multiplied by exp(5 w), of which w is learned from 0
    on.
    """

    padded = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        dimensions: int,
        scale: Tensor | None = None,
        start: Start | None = None,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        self.tokenizer, self.start = tokenizer, start
        self.scale = scale  # of each token's random vector, [vocabulary]
        shape = tokenizer.get_vocab_size(), dimensions
        weight = (
            torch.randn(shape).div_(math.sqrt(dimensions))
            if start is None
            else start.vectors(dimensions)
        )
        # A trained table may have more rows than there are tokens.
        self.embedding = Table(
            len(weight),
            dimensions,
            _weight=weight if scale is None else weight.mul_(scale[:, None]),
        )
        self.log_weights = nn.Parameter(torch.zeros(len(weight))) if weighted else None

    @property
    def weights(self) -> Tensor | None:
        """Return what each token's vector is multiplied by, [v]."""
        return None if self.log_weights is None else self.log_weights.mul(_FASTER).exp()

    @property
    def vectors(self) -> Tensor:
        """Return the vectors of the tokens with their weights, [v, D], as a saved model has
        them."""
        table, weights = self.embedding.weight.detach(), self.weights
        return table if weights is None else table * weights.detach()[:, None]

    def forward(self, features: Ragged) -> Tensor:
        return self.embedding.mean_of(features.values, features.offsets[:-1], self.weights)

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Token ids of texts; queries and documents are read alike."""
        return tokenize(self.tokenizer, texts, progress)

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc", block: int = 4096) -> Tensor:
        """Unit vectors of rows, [n, D], as the saved model gives them; 0 for an empty row."""
        device, starts = self.embedding.weight.device, range(0, len(features), block)
        parts = [
            F.normalize(self(features[start : start + block].to(device)), dim=-1).cpu()
            for start in starts
        ]
        return torch.cat(parts) if parts else torch.empty(0, self.embedding.embedding_dim)

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        modules = [
            {
                "idx": 0,
                "name": "0",
                "path": "",
                "type": "sentence_transformers.models.StaticEmbedding",
            },
            {
                "idx": 1,
                "name": "1",
                "path": "1_Normalize",
                "type": "sentence_transformers.models.Normalize",
            },
        ]
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine", "prompts": {}}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1_Normalize").mkdir(exist_ok=True)
        write_json(folder / "modules.json", modules)
        write_json(folder / "config_sentence_transformers.json", about)
        write_json(folder / "1_Normalize" / "config.json", {})
        # Both libraries can write files, but a full disk is then no OSError.
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        (folder / "model.safetensors").write_bytes(
            save({"embedding.weight": self.vectors.contiguous()})
        )
