"""Makes the helpers beside the tests importable: `oracle`, the definition in loops, and `dense`, in whole matrices."""

import sys
from pathlib import Path

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)
