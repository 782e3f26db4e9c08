"""Static embeddings: a text is the mean of the vectors of the text's tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
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
from .saved import StaticParts, embedded, model_folder, static_parts
from .subwords import Subwords
from .tokenizer import sample, tokenize, train_tokenizer, vocabulary_of, without_repeats
from .word_ids import UNKNOWN

_COUNTED_TEXTS = 8_000  # texts in which tokens are counted; more change nothing on validation
_TEMPERATURES = (0.05, 0.1)
_OUTER_TEMPERATURES = (0.035, 0.14)
# With this many tokens in all documents, long texts train at a temperature of their own: a third of
# the steps favours a high temperature, which loses in the end.
_MANY_TOKENS = 250_000
_TEMPERATURE_OF_LONG_TEXTS = 0.04
_RATE_FACTORS = (1.0, 10 / 3, 1 / 3)  # of the tower's own learning rate
# Above this number of pairs a race costs minutes; on 119,094 pairs of code the higher rate had
# nDCG@10 0.503, the lower 0.495.
MOST_PAIRS = 20_000
# Twice the width brings 0.000 to 0.009 nDCG@10 where the median document has fewer tokens than
# SHORT, and 0.010 to 0.022 where it has more, for 1.6 times the time (docs/results/text-recipe.md).
# With at most
# _FEW_TOKENS in all documents, the time is less than a minute.
SHORT = 64
_FEW_TOKENS = 1_000_000
_WIDE = 1024
# Settings are tried at half the width. The numbers of vectors that begin with length 1 are larger
# there by the root of 2, and so is the rate.
_NARROW = {DIMENSIONS: 0.5, LEARNING_RATE: math.sqrt(2)}
_MINED_NEGATIVES = 3  # negatives of a query that its own weights mine, before training goes on
_WEIGHTS = "tower.token_weights"  # on 119,456 pairs, at the highest rate, they lose 0.014
# A token's weight is learned this many times as fast as its vector; 10 brings more in the mean, and
# less where little is learned.
_FASTER = 5
_LEAST_FREQUENCY = 0.05  # inverse document frequency of a token that every text holds


@dataclass(frozen=True)
class Static:
    """A static embedding trained from scratch, with a tokenizer trained on the corpus.

    Args:
        dimensions: width of the embeddings; from a teacher, at most the width of the teacher's
            vectors.
        vocabulary: pieces of the tokenizer.
        max_length: longer texts are cut to `max_length` tokens.
        drop_repeats: leave out a word repeated within the next ten words: repeated words would
            drown the rest of a text. A static teacher's tokenizer stays unchanged.
        token_weights: learn a weight w of each token, too. The token's vector is multiplied by
            exp(5 w): words of little meaning soon count less. A saved model holds the products.
        init: random vectors to begin with. "idf" scales a token's vector by the token's inverse
            document frequency in the training texts (Spärck Jones 1972), so the untrained tower
            finds texts with common rare words, and training begins there; "ngrams" also has tokens
            with common character n-grams begin near each other (Bojanowski et al. 2017), as "cell"
            and "cells" do; "normal" draws all vectors at the same scale, as usual elsewhere.
        teacher: folder of a saved model or of a run. Training begins with the model's vectors of
            the tokens, in place of `init`. A static model also gives its tokenizer. If `dimensions`
            is at least the static model's width, the vectors are taken unchanged: the training of
            the static model goes on. A recipe takes the static model's width.
    """

    learning_rate: ClassVar[float] = 0.003
    made_rows: ClassVar[int] = 4  # of long documents, beside each pair
    open: ClassVar[Mapping[str, Open]] = {
        TEMPERATURE: Open(beside=("objective.scale",)),
        LEARNING_RATE: Open(),
        DIMENSIONS: Open(beside=("tower.query",)),
        _WEIGHTS: Open(True, beside=("tower.query",)),
        "train.refit": Open("auto", raced=False),
        "mining.again": Open(_MINED_NEGATIVES, raced=False),
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
        batch_size = batch_of(pairs, 16, 32, 2048)
        epochs = epochs_of(pairs, 55_000, 4, 8)
        return batch_size, epochs

    def race(self, pairs: int, tokens: float) -> Race:
        """Return a race of three learning rates, then of temperatures at the best rate, each for a
        sixth of the steps.

        The temperatures are 0.05 and 0.1; if 0.05 is shown to be better, 0.035 is tried too, and
        0.14 if 0.1 is. Many long texts train at 0.04, and try the highest rate only if the middle
        rate is shown to be better than the lowest.

        Short texts, and few long texts, are embedded in 1,024 dimensions, unless a teacher has a
        width of its own; their settings are tried at half the width.

        Many pairs take the highest rate without a race. Where validation is too small to choose,
        the lowest rate is taken: on two samples each of six sets, 50 pairs then bring 0.021 nDCG@10
        (0.008 at the tower's own rate), and 200 pairs 0.010 (-0.010).

        Args:
            pairs: number of training pairs.
            tokens: tokens of the median document.
        """
        rates = [float(f"{self.learning_rate * factor:.2g}") for factor in _RATE_FACTORS]
        lowest = min(rates)
        highest = max(rates)
        start: dict[str, float] = {}
        teacher = self._static_teacher()
        if teacher is not None:
            start[DIMENSIONS] = teacher.table.shape[1]
        if pairs > MOST_PAIRS:
            start[LEARNING_RATE] = highest
            start[_WEIGHTS] = False
            return Race(start)

        start[TEMPERATURE] = _TEMPERATURES[0]
        start[LEARNING_RATE] = self.learning_rate
        are_short = tokens < SHORT
        if not are_short and pairs * tokens >= _MANY_TOKENS:
            start[TEMPERATURE] = _TEMPERATURE_OF_LONG_TEXTS
            lower = [rate for rate in rates if rate < highest]
            rounds = [Round(6, over(LEARNING_RATE, lower), beyond=over(LEARNING_RATE, [highest]))]
        else:
            outer = over(TEMPERATURE, _OUTER_TEMPERATURES)
            rounds = [
                Round(6, over(LEARNING_RATE, rates)),
                Round(6, over(TEMPERATURE, _TEMPERATURES), beyond=outer),
            ]
        unchosen = {LEARNING_RATE: lowest}
        if self.teacher is None and (are_short or pairs * tokens <= _FEW_TOKENS):
            start[DIMENSIONS] = _WIDE
            return Race(start, rounds, unchosen, _NARROW)
        return Race(start, rounds, unchosen)

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> StaticTower:
        """Return an untrained tower, with a tokenizer trained on (an even sample of) the texts."""
        teacher = self._static_teacher()
        if teacher is not None:
            tokenizer = teacher.tokenizer
            vectors = torch.from_numpy(teacher.table[: tokenizer.get_vocab_size()])
            narrow = None
            if self.dimensions < vectors.shape[1]:
                narrow = Pieces(vectors, frequency(tokenizer, texts))
            return self._continued(teacher, narrow)

        tokenizer = train_tokenizer(sample(texts), self.vocabulary, self.max_length)
        if self.drop_repeats:
            tokenizer = without_repeats(tokenizer)
        tokens = vocabulary_of(tokenizer)
        if self.teacher is not None:
            vectors = torch.from_numpy(
                embed(Path(self.teacher), "doc", tokens, "embedding tokens")[:]
            )
            width = min(self.dimensions, len(vectors), vectors.shape[1])
            pieces = Pieces(vectors, frequency(tokenizer, texts))
            return StaticTower(tokenizer, width, None, pieces, self.token_weights)

        scale = None
        if self.init != "normal":
            scale = inverse_frequency(tokenizer, texts)
        subwords = None
        if self.init == "ngrams":
            subwords = Subwords.of(tokens)
        return StaticTower(tokenizer, self.dimensions, scale, subwords, self.token_weights)

    def again(self, tower: Tower) -> StaticTower:
        """Return an untrained tower with the tokenizer of another tower."""
        assert isinstance(tower, StaticTower)
        teacher = self._static_teacher()
        if teacher is not None:
            return self._continued(teacher, tower.start)
        width = self.dimensions
        if self.teacher is not None:
            width = tower.embedding.embedding_dim
        return StaticTower(tower.tokenizer, width, tower.scale, tower.start, self.token_weights)

    def _static_teacher(self) -> StaticParts | None:
        """Return the tokenizer and the vectors of the teacher if the teacher is a static model in
        an existing folder."""
        if self.teacher is None or not Path(self.teacher).is_dir():
            return None
        return static_parts(model_folder(Path(self.teacher)))

    def _continued(self, teacher: StaticParts, narrow: Start | None) -> StaticTower:
        """Return a tower for training on from the vectors of a static teacher.

        A tower of fewer dimensions than the teacher begins with the vectors of `narrow`.
        """
        tokenizer = teacher.tokenizer
        width = teacher.table.shape[1]
        if self.dimensions < width and narrow is not None:
            return StaticTower(tokenizer, self.dimensions, None, narrow, self.token_weights)
        trained = Trained(torch.from_numpy(teacher.table))
        return StaticTower(tokenizer, width, None, trained, self.token_weights)


def frequency(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return the number of times that each token stands in an even sample of texts, [v]."""
    tokens = tokenize(tokenizer, sample(texts, _COUNTED_TEXTS))
    return torch.bincount(tokens.values, minlength=tokenizer.get_vocab_size())


def inverse_frequency(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return log((n + 1) / (texts with the token + 0.5)) of every token, divided by the mean of all
    tokens, [v]; n is the number of texts in an even sample.

    >>> tokenizer = train_tokenizer(["a common word"] * 9 + ["a rare one"] * 2, 99, 9)
    >>> scale = inverse_frequency(tokenizer, ["a common word"] * 9 + ["a rare one"] * 2)
    >>> bool(scale[tokenizer.token_to_id("rare")] > 2 * scale[tokenizer.token_to_id("common")])
    True
    """
    sampled = sample(texts, _COUNTED_TEXTS)
    tokens = tokenize(tokenizer, sampled)
    size = tokenizer.get_vocab_size()
    rows = torch.repeat_interleave(tokens.lengths)
    distinct = torch.unique(rows * size + tokens.values)  # a token counts once in a text
    holders = torch.bincount(distinct % size, minlength=size)
    scale = ((len(sampled) + 1) / (holders + 0.5)).log().clamp(min=_LEAST_FREQUENCY)
    # A word that no training text holds tells nothing.
    scale[tokenizer.token_to_id(UNKNOWN)] = _LEAST_FREQUENCY
    return scale / scale.mean()


class Start(Protocol):
    """Vectors of the tokens to begin with."""

    def vectors(self, dimensions: int) -> Tensor:
        """Return the vectors in new memory, [v, D]."""


class StaticTower(Tower):
    """Token ids of n rows to embeddings, [n, D]: the mean of each row's token vectors; 0 for an
    empty row.

    Args:
        tokenizer: reads texts; it has v tokens.
        dimensions: D.
        scale: factor of each token's first vector, [v].
        start: gives the vectors to begin with; None draws random vectors.
        weighted: multiply the vector of a token by exp(5 w), where w is learned from 0 on.
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
        self.tokenizer = tokenizer
        self.start = start
        self.scale = scale
        if start is None:
            shape = (tokenizer.get_vocab_size(), dimensions)
            weight = torch.randn(shape).div_(math.sqrt(dimensions))
        else:
            weight = start.vectors(dimensions)
        if scale is not None:
            weight = weight.mul_(scale[:, None])
        # A trained table may have more rows than there are tokens.
        rows = len(weight)
        self.embedding = Table(rows, dimensions, _weight=weight)
        self.log_weights = nn.Parameter(torch.zeros(rows)) if weighted else None

    @property
    def weights(self) -> Tensor | None:
        """Return the factor of each token's vector, [v]; None if weights are not learned."""
        if self.log_weights is None:
            return None
        return self.log_weights.mul(_FASTER).exp()

    @property
    def vectors(self) -> Tensor:
        """Return the vectors of the tokens times the weights, [v, D], as in a saved model."""
        table = self.embedding.weight.detach()
        weights = self.weights
        if weights is None:
            return table
        return table * weights.detach()[:, None]

    def forward(self, features: Ragged) -> Tensor:
        return self.embedding.mean_of(features.values, features.offsets[:-1], self.weights)

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the token ids of texts; queries and documents are read alike."""
        return tokenize(self.tokenizer, texts, progress)

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc", block: int = 4096) -> Tensor:
        """Return the unit vectors of rows, [n, D], as the saved model gives them; 0 for an empty
        row."""
        device = self.embedding.weight.device
        vectors = torch.empty(len(features), self.embedding.embedding_dim)
        for start in range(0, len(features), block):
            rows = features[start : start + block].to(device)
            vectors[start : start + block] = F.normalize(self(rows), dim=-1)
        return vectors

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        embedding = {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.models.StaticEmbedding",
        }
        normalisation = {
            "idx": 1,
            "name": "1",
            "path": "1_Normalize",
            "type": "sentence_transformers.models.Normalize",
        }
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine", "prompts": {}}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1_Normalize").mkdir(exist_ok=True)
        write_json(folder / "modules.json", [embedding, normalisation])
        write_json(folder / "config_sentence_transformers.json", about)
        write_json(folder / "1_Normalize" / "config.json", {})
        # Both libraries can write files, but a full disk is then no OSError.
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        weights = save({"embedding.weight": self.vectors.contiguous()})
        (folder / "model.safetensors").write_bytes(weights)
