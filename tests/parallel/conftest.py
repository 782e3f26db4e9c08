"""Makes the helpers of the step's tests importable: `worlds`, several processes on one machine."""

import sys
from pathlib import Path

HELPERS = str(Path(__file__).parents[1] / "engine")
if HELPERS not in sys.path:
    sys.path.insert(0, HELPERS)
