"""The backend "weft" where PyTorch has no backends in Python: the oracle is a formula, or one rank with the whole batch."""

PROGRAM = "process_group_programs.py"


def test_a_process_group_in_python(run):
    run(PROGRAM, "functions,groups,ddp,ends", ranks=2)
