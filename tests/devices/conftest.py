"""The files `on_*.py` are tests on the pretend accelerator, in a process of their own: see `test_pretend_accelerator.py`."""

import os
import sys
from pathlib import Path

if os.environ.get("TEMPERA_TESTS") == "pretend":
    if (here := str(Path(__file__).parent)) not in sys.path:
        sys.path.insert(0, here)
    import pretend  # noqa: F401

    collect_ignore = ["pretend.py"]  # a device is registered once, not once more by its doctests
else:
    collect_ignore_glob = ["on_*.py", "pretend.py"]
