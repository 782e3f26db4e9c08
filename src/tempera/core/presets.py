"""Objectives with a name in the literature, each a choice of parts. Any part can be replaced by keyword."""

from __future__ import annotations

from typing import Any

from . import pools
from .objective import Objective
from .similarity import cosine
from .temperature import Temperature

FORWARD = (pools.docs, pools.negatives, pools.sampled)


def mnr(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """Multiple negatives ranking (Henderson et al. 2017, section 4), also InfoNCE, NT-Xent, in-batch softmax.

    The temperature .05 (scale 20) is sentence-transformers' default.
    """
    return Objective(**{"similarity": cosine, "temperature": temperature, "pools": FORWARD, **parts})


def symmetric(temperature: float | Temperature = 0.05, **parts: Any) -> Objective:
    """Both directions, one softmax each, averaged (CLIP, Radford et al. 2021, figure 3)."""
    both = {"pools": (*FORWARD, pools.back_queries), "partition": "per_direction"}
    return Objective(**{"similarity": cosine, "temperature": temperature, **both, **parts})


PRESETS = (mnr, symmetric)
