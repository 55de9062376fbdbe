#!/usr/bin/env python3
"""fsdp_steps.py - times steps of FSDP2 (fully_shard) on different backends.

    weft run -n 2 -- python tools/bench/torch/fsdp_steps.py [--models mlp,gpt,layers] [--rounds 40]

All ways run in the same processes, one step each in a random order, so that a change of the machine's load
reaches all of them. `none` is the whole model on each rank without communication. Rank 0 prints the median step
of each way in ms, and in brackets what it adds to `none`. `memory` is weft with buffers of weft_alloc. Set
OMP_NUM_THREADS=1 where each rank has one core.
"""

import torch
import torch.distributed as dist
from ddp_steps import MODELS, measure, parse_arguments
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import weft
import weft.torch


def blocks(model):
    """The modules that FSDP2 gathers one by one: those of the largest list in the model, or its layers."""
    lists = [module for module in model.modules() if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))]
    return [block for block in max(lists, key=len) if any(True for _ in block.parameters())]


def wrapped(way, make, groups, _):
    """A model that is sharded over the ranks of this way's backend."""
    torch.manual_seed(0)
    model, inputs, labels = make()
    if way == "none":
        return model, inputs, labels
    mesh = DeviceMesh.from_group(groups["gloo" if way == "gloo" else "weft"], "cpu")
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if way == "memory":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    return model, inputs, labels


def main():
    arguments = parse_arguments(__doc__, ["none", "gloo", "weft", "memory"])
    torch.set_num_threads(1)
    with weft.init() as session:
        weft.torch.init_process_group("weft")
        groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        for name in arguments.models:
            measure(session, name, {way: wrapped(way, MODELS[name], groups, arguments) for way in arguments.ways}, arguments)


if __name__ == "__main__":
    main()
