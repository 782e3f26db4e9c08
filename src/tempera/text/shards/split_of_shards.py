"""The split of pairs in shards: held-out rows and a sample in memory, and training rows in the
shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np

from ...errors import quantity
from ...parallel.distributed import ALONE, Group
from ...task.evaluation import Evaluation
from ..read.pairs import TEST, TRAIN, VALIDATION
from ..read.sources import PairsFile
from ..train.split import Split, hold_out
from .pair_survey import survey


def is_in_shards(source: object) -> TypeGuard[PairsFile]:
    """Return True for a source of pairs that are trained from shards."""
    return isinstance(source, PairsFile) and source.in_shards


def split_of_shards(
    source: PairsFile, options: Evaluation, group: Group = ALONE, folder: Path | None = None
) -> Split:
    """Return the split of pairs in shards; all processes call.

    The rows in memory are those of held-out queries and a sample of the training rows, by whose
    documents the held-out queries are judged. The rows to train on stay in the shards. During the
    pass a file of 16 bytes a pair lies in `folder`.

    Raises:
        ConfigError: too many queries to hold out.
        DataError: unreadable shards, or nothing left to train on.
    """
    surveyed = survey(source, options, group, folder=folder)
    pairs, shards = surveyed.pairs, surveyed.shards
    if surveyed.known:
        options = replace(options, shared_documents="keep")
    # Drawn queries are all asked; of files that the user has named, as many as the options say.
    if source.test is None:
        options = replace(options, queries=None if (pairs.part == TEST).any() else 0)
    if source.validation is None:
        options = replace(options, validation=None if (pairs.part == VALIDATION).any() else 0)
    split = hold_out(pairs, np.ones(len(pairs), bool), options)
    sampled = int((pairs.part == TRAIN).sum())
    note = (
        f"queries are held out by their hashes, and ranked against the documents of held-out pairs and of {sampled:,} other pairs, "
        "the smallest by their hashes"
    )
    files = (
        f"{quantity(len(shards.shards.shards), 'shards')} in {quantity(len(shards.pairs), 'parts')}, about "
        f"{shards.distinct['query']:,} distinct queries and {shards.distinct['doc']:,} distinct documents"
    )
    return replace(
        split, shards=shards, dropped=dict(shards.dropped), notes=(files, note, *split.notes)
    )
