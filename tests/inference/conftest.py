"""The server's own package is a distribution of its own: its pure parts are tested here, in our environment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "inference"))
