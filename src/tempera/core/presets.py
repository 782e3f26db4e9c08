"""Objectives with a name in the literature, each a choice of parts. Any part can be replaced by
keyword."""

from __future__ import annotations

from typing import Any

from . import pools
from .corrections import Hardness, LogQ
from .masks import Guided, SameId
from .objective import Objective
from .similarity import cosine, dot
from .temperature import Temperature

FORWARD = (pools.docs, pools.negatives, pools.sampled)


def mnr(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """Multiple negatives ranking (Henderson et al. 2017, section 4), also InfoNCE (van den Oord et
    al. 2018), NT-Xent.

        loss_i = -log( exp(s_ii / t) / sum over documents c of the batch, negatives and drawn ones
        of exp(s_ic / t) )

    The temperature 0.05 (scale 20) is sentence-transformers' default.

    Args:
        temperature: t, in units of the similarity, or a `Temperature`.
        parts: of `Objective`, in place of the preset's; all presets take parts.

    Raises:
        ConfigError: parts that do not go together; a temperature of 0 or below.

    >>> import torch
    >>> queries, documents = torch.eye(3), torch.eye(3)  # [b, D] each, row i is a pair
    >>> print([round(loss, 4) for loss in mnr(temperature=1.0)(queries, documents).tolist()])  # [b]
    [0.5514, 0.5514, 0.5514]
    """
    parts.setdefault("similarity", cosine)
    parts.setdefault("pools", FORWARD)
    return Objective(temperature=temperature, **parts)


infonce = mnr  # the same loss by the name of van den Oord et al. 2018


def symmetric(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """Both directions, one softmax each, averaged (CLIP, Radford et al. 2021, figure 3).

    >>> [pool.name for pool in symmetric().pools], symmetric().partition
    (['docs', 'negatives', 'sampled', 'back_queries'], 'per_direction')
    """
    parts.setdefault("pools", (*FORWARD, pools.back_queries))
    parts.setdefault("partition", "per_direction")
    return mnr(temperature, **parts)


def gte(temperature: float | Temperature = 0.01, **parts: Any) -> Objective:
    """All four directions in one softmax (GTE, Li et al. 2023, eq. 2); its temperature is 0.01.

    >>> [pool.name for pool in gte().pools], gte().partition
    (['docs', 'negatives', 'sampled', 'queries', 'back_queries', 'back_docs'], 'joint')
    """
    every = (*FORWARD, pools.queries, pools.back_queries, pools.back_docs)
    parts.setdefault("pools", every)
    return mnr(temperature, **parts)


def gist(temperature: float | Temperature = 0.01, margin: float = 0.0, **parts: Any) -> Objective:
    """Guided in-sample selection of negatives (GISTEmbed, Solatorio 2024, eq. 3-4); its temperature
    is 0.01.

    Needs the guide's vectors of every side.

    Args:
        temperature: t, in units of the similarity.
        margin: how much less similar than the pair a candidate has to be for the guide, in its
            cosine.

    Raises:
        DataError: a side without guide vectors.

    >>> gist(margin=0.05).masks
    (Guided(margin=0.05, kind='absolute', by='guide'),)
    """
    parts.setdefault("pools", (*FORWARD, pools.queries, pools.back_positives))
    parts.setdefault("masks", (Guided(margin),))
    return mnr(temperature, **parts)


def simcse(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """Two dropout views of one text, or a pair with hard negatives (SimCSE, Gao et al. 2021, eq. 1
    and 5).

    >>> [pool.name for pool in simcse().pools]
    ['docs', 'negatives']
    """
    parts.setdefault("pools", (pools.docs, pools.negatives))
    return mnr(temperature, **parts)


def sampled_softmax(temperature: float | Temperature = 1.0, **parts: Any) -> Objective:
    """Corrected in-batch softmax of two-tower recommenders (Yi et al. 2019, eq. 4-5), TFRS
    `Retrieval`'s loss.

    Needs ids and logq of every document.

    Raises:
        DataError: documents without ids or logq.

    >>> sampled_softmax().similarity.name, sampled_softmax().corrections
    ('dot', (LogQ(kind='classic', weight=1.0),))
    """
    parts.setdefault("similarity", dot)
    parts.setdefault("corrections", (LogQ(),))
    parts.setdefault("masks", (SameId(),))
    return mnr(temperature, **parts)


def mixed_negatives(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """In-batch and uniformly drawn documents, corrected for both (Yang et al. 2020, section 3;
    `expected_logq`).

    Normalised with a temperature, as Yi et al. 2019 recommend in section 3.2. Needs ids and logq of
    every document.

    Raises:
        DataError: documents without ids or logq.

    >>> [pool.name for pool in mixed_negatives().pools], mixed_negatives().similarity.name
    (['docs', 'sampled'], 'cosine')
    """
    parts.setdefault("similarity", cosine)
    parts.setdefault("pools", (pools.docs, pools.sampled))
    return sampled_softmax(temperature, **parts)


def hardness(
    temperature: float | Temperature = 0.05, strength: float = 9.0, **parts: Any
) -> Objective:
    """Negatives weighted by their similarity: strength 9 on the other rows' (Lan et al. 2025, eq.
    5).

    EmbeddingGemma (Schechter Vera et al. 2025) weights a row's own hard negatives with strength 5:
    `mnr(corrections=(Hardness(5.0, "own"),))`.

    Args:
        temperature: t, in units of the similarity.
        strength: in logits for a similarity of 1, whatever the temperature.

    >>> hardness().corrections
    (Hardness(strength=9.0, on='others'),)
    """
    parts.setdefault("corrections", (Hardness(strength),))
    return mnr(temperature, **parts)


PRESETS = (mnr, symmetric, gte, gist, simcse, sampled_softmax, mixed_negatives, hardness)
