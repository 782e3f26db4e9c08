"""Makes `examples`, beside the tests, importable: batches, and choices of the parts of an
objective."""

import sys
from pathlib import Path

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)
