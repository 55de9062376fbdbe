"""DDP with weft's hook: the oracle is DDP over gloo, or the same job without the change."""

import pytest

PROGRAM = "ddp_programs.py"


def test_dense_equals_gloo_in_bits(run):
    run(PROGRAM, "equals_gloo,state_and_hook_pair,branches,compiled")


@pytest.mark.parametrize("shards", [0, 2])
def test_codecs_train_and_ranks_stay_equal(run, shards):
    run(PROGRAM, "codecs_train", "powersgd:rank=4", "topk:ratio=0.05", "bf16", shards=shards)


def test_codecs_belong_to_parameters(run):
    run(PROGRAM, "codec_survives_new_buckets,convolution_with_codec,chosen_codecs,nan_is_skipped,refuses")


def test_a_job_continues_from_its_checkpoint_in_bits(run, tmp_path):
    for function in ("checkpoint", "continued"):
        run(PROGRAM, function, tmp_path, "powersgd:rank=2", "topk:ratio=0.1")


def test_a_rank_killed_in_backward_is_named(run_failing):
    job = run_failing(PROGRAM, "dies_in_backward")
    assert "named:" in job.logs["rank0.log"], job.text()
