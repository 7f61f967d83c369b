"""Runs scripts in one process, each in a separate directory: ``run_scripts.py DIRECTORY FILE...``."""

import os
import runpy
import sys
from pathlib import Path

home = Path(sys.argv[1]).resolve()
for name in sys.argv[2:]:
    folder = home / Path(name).stem
    folder.mkdir(parents=True)
    os.chdir(folder)
    sys.argv = [name]
    print("SCRIPT", Path(name).stem, flush=True)
    runpy.run_path(name, run_name="__main__")
