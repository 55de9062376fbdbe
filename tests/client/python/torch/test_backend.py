"""The backend "weft" of torch.distributed: the oracle is a formula."""

PROGRAM = "backend_programs.py"


def test_functions_of_torch_distributed(run):
    run(PROGRAM, "reductions,movements,exchanges,objects,works,mistakes,functional,memory", ranks=3)
