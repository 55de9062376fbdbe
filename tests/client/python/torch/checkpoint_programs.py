"""Ranks of test_checkpoint.py: distributed checkpoints in the snapshots of the shards."""

import os
import pathlib
import signal

import models
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

import weft.torch
import weft.torch.checkpoint as checkpoint

weft.torch.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
ALL_WEIGHTS = "all weights.pt"
LONG = 10 << 20  # elements of a tensor of 40 MiB, which rank 0 saves


def sharded():
    """A model whose parameters and moments are divided among the ranks; Adam's step counts are not."""
    model = models.mlp(seed=RANKS)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def whole(state):
    """A copy of the tree with each divided tensor whole, on every rank."""
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    state = state.full_tensor() if hasattr(state, "full_tensor") else state
    return state.clone() if isinstance(state, torch.Tensor) else state


def newest_snapshot(session, folder):
    """The step of the newest snapshot that all ranks see; 0: none."""
    steps = [int(path.stem.split("-")[1]) for path in pathlib.Path(folder).glob("snap-*.json")]
    newest = torch.tensor([max(steps, default=0)])
    session.all_reduce(newest, op="min").wait()
    return newest.item()


def killed_in_a_save(session, folder):
    """Saves in each step; when a snapshot is there, rank 1 is killed while it writes its share."""
    model, optimizer = sharded()
    states = {}
    while True:
        with session.step() as number:
            models.train(model, optimizer, 1, RANK, RANKS, first=number)
            state = state_of(model, optimizer)
            checkpoint.save({**state, "number": number, "long": torch.arange(LONG, dtype=torch.int32) + number})
        states[number] = whole(state)
        if RANK == 0:
            torch.save(states, f"{folder}/part")
            os.rename(f"{folder}/part", f"{folder}/{ALL_WEIGHTS}")
        if newest_snapshot(session, folder) > 0:
            break
    if RANK == 1:
        checkpoint._as_bytes = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    with session.step():
        checkpoint.save(state)


def equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def loaded_in_bits(session, folder):
    """Every weight and moment has the bits of the step that the snapshot names, on any number of ranks."""
    model, optimizer = sharded()
    models.train(model, optimizer, 1, RANK, RANKS)  # other weights and moments than the saved ones
    state = {**state_of(model, optimizer), "number": -1, "long": torch.zeros(LONG, dtype=torch.int32)}
    reader = checkpoint.load(state)
    assert torch.equal(state.pop("long"), torch.arange(LONG, dtype=torch.int32) + reader.step)
    assert reader.step == reader.saved_step == state.pop("number") == session.step_next - 1
    want = torch.load(f"{folder}/{ALL_WEIGHTS}")[reader.step]
    have = whole(state)
    assert equal(have["model"], want["model"]) and equal(have["optimizer"], want["optimizer"])


def torn(session, folder):
    """A share above the limit changes nothing. Then snapshots are made in which rank 1 has an older share."""
    blob, first_torn = [], None
    checkpoint.BLOB_BYTES_MAX = 16 << 20
    set_blob, session.snapshot_blob = session.snapshot_blob, lambda data: blob.append(data) or set_blob(data)
    while True:
        with session.step() as number:
            checkpoint.save({f"number of {RANK}": torch.tensor(number), f"bytes of {RANK}": [number]})
            try:
                checkpoint.save({f"large {RANK}": torch.zeros(5 << 20 if RANK == 1 else 1)})
            except CheckpointException as error:
                assert "rank 1's share" in str(error) and "FileSystemWriter" in str(error), error
            else:
                raise AssertionError("a share above the limit was taken")
            if first_torn and RANK == 1:
                set_blob(blob[0])
        newest = newest_snapshot(session, folder)
        if first_torn and newest >= first_torn:
            return
        if newest > 0 and not first_torn:
            first_torn = number + 1


def refuses_torn(session, folder, step):
    """The snapshot that was made between two shares is refused; the older one is whole."""
    state = {f"number of {rank}": torch.tensor(-1) for rank in range(2)}
    if int(step) == session.step_next - 1:
        checkpoint.load(state)
        assert [number.item() for number in state.values()] == [int(step), int(step)]
        return
    try:
        checkpoint.load(state)
    except CheckpointException as error:
        assert "Restore an older snapshot" in str(error), error
    else:
        raise AssertionError("a checkpoint of two saves was loaded")


def refused_without_shards(session):
    for action in (checkpoint.save, checkpoint.load):
        try:
            action({"a": torch.ones(1)})
        except (weft.Unsupported, CheckpointException) as error:
            assert "WEFT_SNAPSHOT" in str(error), error
        else:
            raise AssertionError("a checkpoint without a snapshot was taken")
