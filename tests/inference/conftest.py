"""The server's package is a separate distribution, whose pure parts are tested in this environment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "inference"))
