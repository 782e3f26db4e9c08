"""Calibration of a model: probabilities fitted to similarities."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..arguments import refuse_other_kinds
from ..artifacts.calibrated import Calibration, draw_calibration, write_calibration
from ..errors import ConfigError
from ..forms.roles import Roles
from ..mining.embedder import Model
from ..ranking.calibration import fit, thresholds
from ..towers.saved import fingerprint
from .known_pairs import known_pairs

DEPTH = 10


def calibrate(
    model: str | Path,
    pairs: str | Path | None = None,
    roles: Roles | None = None,
    precision: Sequence[float] = (0.9,),
    recall: Sequence[float] = (0.9,),
    depth: int = DEPTH,
    split: str = "test",
) -> Calibration:
    """Fit probabilities to a model's similarities, and write the fit beside the model:
    calibration.json, calibration.svg, calibration.png.

    The probability of a pair is the share of relevant pairs among pairs of the same similarity and
    the same source: base rates of sources differ.

    - Pairs with a column `score` (1 and 0, or grades and `data.min_score`): the probability that a
      pair of the table with a given similarity is relevant.
    - Pairs that are all relevant: the probability that a hit among the first `depth` of a search,
      with a given similarity, is an answer of the query in the table. Right documents missing in
      the table count as wrong, so the probability is rather too low. A run is searched in its own
      corpus if the corpus has any answer; else, and with a model folder, the documents of the pairs
      are searched.

    Args:
        model: a run folder or a model folder, of texts.
        pairs: a table or a BEIR folder of queries outside the training data; None uses the held-out
            queries of a run.
        roles: roles of the columns of the table.
        precision: target precisions; the lowest threshold to reach each is reported.
        recall: target recalls; the highest threshold to reach each is reported.
        depth: number of hits of each query.
        split: split of a BEIR folder.

    Raises:
        DataError: an unreadable model, unreadable data, or too few pairs.
        ConfigError: a precision, a recall or a depth out of range.
        OutputError: the files cannot be written.

    >>> calibration = calibrate("runs/first")
    >>> low, high = calibration.probability([0.2, 0.9]).tolist()
    >>> 0 <= low < high <= 1
    True
    """
    refuse_other_kinds(calibrate, locals())
    _check(precision, recall, depth)
    # Numbers of NumPy become numbers of Python, which JSON takes.
    precision = [float(target) for target in precision]
    recall = [float(target) for target in recall]
    depth = int(depth)
    judged = Model(str(model))
    pairs_file = None if pairs is None else Path(pairs)
    known = known_pairs(judged, pairs_file, roles, depth, split)
    fitted = fit(known.pairs)
    n = len(known.pairs)
    queries, relevant, _ = known.pairs.kinds
    about = {"pairs": n, "queries": queries, "relevant": relevant, "base_rate": relevant / n}
    about.update(known.about)
    calibration = Calibration(
        fingerprint(judged.folder),
        fitted.chosen,
        fitted.maps[fitted.chosen],
        about,
        fitted.judged,
        tuple(thresholds(known.pairs, fitted, precision, recall)),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_calibration(judged.folder, calibration, draw_calibration(known.pairs, fitted))
    return calibration


def _check(precision: Sequence[float], recall: Sequence[float], depth: int) -> None:
    """Raise ConfigError for a precision or recall outside 0 to 1, or a depth below 1."""
    for name, targets in (("precision", precision), ("recall", recall)):
        for target in targets:
            if not 0 < target <= 1:
                raise ConfigError(f"{name} is {target:g}; give a share above 0 and at most 1")
    if depth < 1:
        raise ConfigError(f"depth is {depth}; give at least 1 hit of each query")
