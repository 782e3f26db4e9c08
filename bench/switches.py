"""Static towers with and without something that `tempera train` does for them.

`python bench/switches.py [SETS] [SEEDS] --switch SWITCH --cache FOLDER` trains each set without and
with `tower.SWITCH`, from the folder that TEMPERA_DATA names, and on the standard library, which
every machine has. SWITCH is `drop_repeats`, which leaves out a word that stands again within the
next ten words, or `token_weights`, which learns a weight of each token beside its vector.
Differences of means over the seeds have 95 % intervals, paired by query; CPU seconds are of the
whole command.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from _harness import Aim, finish
from _sets import SETS, parser_of_sets
from made_rows import LIBRARY, measured_all

RECORDS = {"drop_repeats": "repeats", "token_weights": "token_weights"}


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = parser_of_sets(__doc__, [LIBRARY, *SETS], 3)
    parser.add_argument("--switch", choices=RECORDS, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, option = range(options.seeds), f"tower.{options.switch}"
    figures = measured_all(options.sets.split(","), options.cache, seeds, option, (False, True))
    differences = [each["difference"] for each in figures.values()]
    aims = [Aim("sets shown worse", sum(each["high"] < 0 for each in differences), 0)]
    finish(RECORDS[options.switch], figures, aims, ["torch", "tempera"])


if __name__ == "__main__":
    main()
