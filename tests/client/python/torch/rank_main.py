"""rank_main.py PROGRAM FUNCTIONS [ARGUMENTS] - one rank of a test: calls functions of the file PROGRAM.

Its caller is `run_job` in conftest.py. FUNCTIONS are names separated by commas, called one after the other.
The session is open before the first call and closed after the last.
"""

import importlib.util
import sys

import torch

import weft

torch.set_num_threads(1)
with weft.init(deadline=60) as session:
    spec = importlib.util.spec_from_file_location("program", sys.argv[1])
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for name in sys.argv[2].split(","):
        getattr(program, name)(session, *sys.argv[3:])
