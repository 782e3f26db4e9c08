"""A cross-encoder scores pairs as sentence-transformers does; a model without a trained score is
none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tempera.errors import DataError
from tempera.towers.cross import load_cross_encoder

pytest.importorskip("sentence_transformers")


def test_pairs_are_scored_by_a_model_that_was_trained_to_score_them(
    tiny: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tiny, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.save_pretrained(tmp_path)
    pairs = [("the cat", "sat on a mat"), ("straw", "gold"), ("the cat", "gold")]
    scores = load_cross_encoder(tmp_path)(pairs)
    model = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        logits = [
            model(**tokenizer(*pair, return_tensors="pt")).logits.sigmoid().item() for pair in pairs
        ]
    np.testing.assert_allclose(scores, logits, atol=1e-6)
    assert scores.dtype == np.float32 and len(set(scores.tolist())) == 3


def test_an_embedding_model_is_no_cross_encoder(tiny: Path) -> None:
    """The other library opens it, and gives it a score that is drawn at random."""
    with pytest.raises(
        DataError, match=r"is no cross-encoder: BertModel has no score of a pair that was trained"
    ):
        load_cross_encoder(tiny)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a cross-encoder that sentence-transformers opens"):
        load_cross_encoder(tmp_path)
