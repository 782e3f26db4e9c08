"""Makes the helpers beside the tests importable: `page_server`, a stand-in for the server."""

import sys
from pathlib import Path

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)
