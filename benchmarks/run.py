"""`make bench`: puts the repository on the path and hands over to `benchmarks.main`; --help explains it."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("benchmarks.main", run_name="__main__")
