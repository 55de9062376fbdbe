"""Trainers of PyTorch on the backend "weft": the oracle is gloo, or one rank with the whole batch."""

PROGRAM = "trainer_programs.py"


def test_ddp_fsdp_and_zero_equal_their_oracles(run):
    run(
        PROGRAM,
        "ddp_equals_gloo,fsdp_equals_one_rank,zero_equals_one_rank,join_uneven_inputs,mesh_of_one_dimension",
    )


def test_groups_of_some_ranks_and_meshes_of_two_dimensions(run):
    run(PROGRAM, "groups,mesh_of_two_dimensions,tensor_parallel,sequence_parallel", ranks=4)


def test_a_model_continues_from_a_distributed_checkpoint_in_bits(run, tmp_path):
    run(PROGRAM, "checkpoint", tmp_path)


def test_a_rank_killed_in_backward_is_named(run_failing):
    job = run_failing(PROGRAM, "dies_in_backward")
    assert "named:" in job.logs["rank0.log"], job.text()
