"""Chooses the programs that are tested: those of `fixed/`, or with SHOP=with_bugs those of that directory."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / os.environ.get("SHOP", "fixed")))
