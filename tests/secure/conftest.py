"""The modules that these tests share (`parties`, `lawless`, `stand_ins`, `formal_sums`) are found beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
