"""Calibration of a model: probabilities fitted to its similarities."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..arguments import refuse_other_kinds
from ..artifacts.calibrated import Calibration, draw_calibration, write_calibration
from ..errors import ConfigError
from ..mining.embedder import Model
from ..ranking.calibration import fit, thresholds
from ..text.read.roles import Roles
from ..towers.saved import fingerprint
from .known_pairs import known

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
    """Fit probabilities to a model's similarities, and write them beside it: calibration.json,
    calibration.svg, calibration.png.

    The probability of a pair is that a pair like it is relevant, where it comes from the same
        source: base rates differ.

    - Pairs with a column `score` (1 and 0, or grades and `data.min_score`): that a pair of this table with this similarity
      is relevant.
    - Pairs that are all relevant: that a document which a search shows within the first `depth` with this similarity is one of
      the answers of its query in the table. Right documents that are missing there count as wrong,
      so that it is rather too low. A run is searched in its own corpus if any answer is in it;
      else, and with a model folder, the documents of the pairs are searched.

    Args:
        model: a run folder or a model folder, of texts.
        pairs: a table or a BEIR folder of queries that the model was not trained on; None uses the
            held-out queries of a run.
        roles: of the columns of the table.
        precision: for each of these, the lowest threshold that reaches it.
        recall: for each of these, the highest threshold that reaches it.
        depth: of the search.
        split: of BEIR folders.

    Raises:
        DataError: a model or data that cannot be read, or too few pairs.
        ConfigError: a precision, a recall or a depth out of range.
        OutputError: the files cannot be written.

    >>> calibration = calibrate("runs/first")
    >>> low, high = calibration.probability([0.2, 0.9]).tolist()
    >>> 0 <= low < high <= 1
    True
    """
    refuse_other_kinds(calibrate, locals())
    _check(precision, recall, depth)
    precision, recall, depth = (
        [*map(float, precision)],
        [*map(float, recall)],
        int(depth),
    )  # also of NumPy
    judged = Model(str(model))
    labelled = known(judged, None if pairs is None else Path(pairs), roles, depth, split)
    fitted = fit(labelled.pairs)
    queries, relevant, _ = labelled.pairs.kinds
    n = len(labelled.pairs)
    counts = {"pairs": n, "queries": queries, "relevant": relevant, "base_rate": relevant / n}
    calibration = Calibration(
        fingerprint(judged.folder),
        fitted.chosen,
        fitted.maps[fitted.chosen],
        {**counts, **labelled.about},
        fitted.judged,
        tuple(thresholds(labelled.pairs, fitted, precision, recall)),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_calibration(judged.folder, calibration, draw_calibration(labelled.pairs, fitted))
    return calibration


def _check(precision: Sequence[float], recall: Sequence[float], depth: int) -> None:
    """Raise ConfigError for a precision or recall outside 0 to 1, or a depth below 1."""
    for name, targets in (("precision", precision), ("recall", recall)):
        for target in targets:
            if not 0 < target <= 1:
                raise ConfigError(f"{name} is {target:g}; give a share above 0 and at most 1")
    if depth < 1:
        raise ConfigError(f"depth is {depth}; give at least 1 hit of each query")
