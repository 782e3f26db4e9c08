"""Makes `pretend`, an accelerator without one, importable; its device is there from before the first backward pass on."""

import sys
from pathlib import Path

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)

import pretend  # noqa: F401

collect_ignore = ["pretend.py"]  # a device is registered once, not once more by its doctests
