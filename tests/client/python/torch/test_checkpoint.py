"""Distributed checkpoints in the snapshots of the shards: the oracle is the saved state in bits."""

PROGRAM = "checkpoint_programs.py"


def making(folder):
    return {
        "WEFT_SNAPSHOT_FOLDER": str(folder),
        "WEFT_SNAPSHOT_EVERY": "2 steps",
        "WEFT_SNAPSHOT_KEEP": "1000",
    }


def steps_of(folder):
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("snap-*.json"))


def test_a_killed_save_leaves_the_older_checkpoint_for_any_number_of_ranks(run, run_failing, tmp_path):
    job = run_failing(PROGRAM, "killed_in_a_save", tmp_path, shards=2, environment=making(tmp_path))
    assert job.status != 0 and steps_of(tmp_path), job.text()
    for ranks in (1, 3):
        run(PROGRAM, "loaded_in_bits", tmp_path, ranks=ranks, shards=1,
            environment={"WEFT_SNAPSHOT_RESTORE": str(tmp_path)})  # fmt: skip


def test_a_snapshot_between_two_shares_is_refused(run, tmp_path):
    run(PROGRAM, "torn", tmp_path, shards=1, environment=making(tmp_path))
    first, last = steps_of(tmp_path)[0], steps_of(tmp_path)[-1]
    for step in (first, last):
        run(PROGRAM, "refuses_torn", tmp_path, first, ranks=1, shards=1,
            environment={"WEFT_SNAPSHOT_RESTORE": f"{tmp_path}:{step}"})  # fmt: skip


def test_a_job_without_shards_refuses_with_the_other_way(run):
    run(PROGRAM, "refused_without_shards", ranks=1)
