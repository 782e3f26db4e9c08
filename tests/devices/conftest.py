"""The files `on_*.py` are tests on the pretend accelerator, in a process of their own: see
`test_pretend_accelerator.py`.

With TEMPERA_TESTS=gpu, those marked `gpu` run on a real one: see `card.py`.
"""

import os
import sys
from pathlib import Path

if (mode := os.environ.get("TEMPERA_TESTS")) in ("pretend", "gpu"):
    for folder in (Path(__file__).parent, Path(__file__).parents[2] / "bench"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    if mode == "gpu":
        import card

        sys.modules["pretend"] = card
    else:
        import pretend  # noqa: F401

    collect_ignore = [
        "card.py",
        "pretend.py",
    ]  # a device is registered once, not once more by its doctests
else:
    collect_ignore_glob = ["on_*.py", "card.py", "pretend.py"]
