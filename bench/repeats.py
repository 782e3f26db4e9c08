"""Static towers that leave out a word that stands again within the next ten words, and those that read all words.

`python bench/repeats.py [SETS] [SEEDS] --cache FOLDER` trains each set with and without `tower.drop_repeats`, from the folder that
TEMPERA_DATA names, and on the standard library, which every machine has. Differences of means over the seeds have 95 % intervals,
paired by query; CPU seconds are of the whole command.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from _harness import Aim, finish
from _sets import SETS, parser_of_sets
from made_rows import LIBRARY, measured_all


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    options = parser_of_sets(__doc__, [LIBRARY, *SETS], 3).parse_args()
    torch.set_num_threads(1)
    figures = measured_all(
        options.sets.split(","), options.cache, range(options.seeds), "tower.drop_repeats", (False, True)
    )
    differences = [each["difference"] for each in figures.values()]
    aims = [Aim("sets shown worse", sum(each["high"] < 0 for each in differences), 0)]
    finish("repeats", figures, aims, ["torch", "tempera"])


if __name__ == "__main__":
    main()
