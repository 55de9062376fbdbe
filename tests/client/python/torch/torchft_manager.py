"""torchft_manager.py PORT NAME DIES - one replica of test_torchft.py under torchft's own manager and lighthouse.

Each step averages a tensor of the replicas that take part. DIES "yes": the replica joins after the other one's first
step, whose state it gets, and is killed after three steps together. The other one ends after three more steps alone.
The store at PORT states that there was a first step.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager

import weft.torch.torchft

PORT, NAME, DIES = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "yes"
torch.set_num_threads(1)
test = dist.TCPStore("127.0.0.1", PORT, is_master=False, timeout=timedelta(seconds=90))
if DIES:
    test.wait(["first step"])
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
state = {"steps": 0}
manager = Manager(
    pg=weft.torch.torchft.ProcessGroup(timedelta(seconds=30)),
    load_state_dict=state.update,
    state_dict=lambda: dict(state),
    min_replica_size=1,
    replica_id=NAME,
    store_addr="127.0.0.1",
    store_port=store.port,
    rank=0,
    world_size=1,
    timeout=timedelta(seconds=30),
    quorum_timeout=timedelta(seconds=60),
    lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
    # With it, replicas that begin together differ in step 0: all but one contribute zeros to the mean of all.
    init_sync=False,
)
together = alone = 0  # steps with the other replica, and after it
while alone < 3:
    manager.start_quorum()
    tensor = torch.full((100,), 3.0)
    manager.allreduce(tensor).wait()
    if not manager.should_commit():
        continue
    assert tensor.eq(3.0).all(), tensor
    state["steps"] += 1
    test.set("first step", "")
    together += manager.num_participants() == 2
    alone += together > 0 and manager.num_participants() == 1
    print("committed", NAME, state["steps"], manager.num_participants(), flush=True)
    if DIES and together == 3:
        os.kill(os.getpid(), signal.SIGKILL)
manager.shutdown(wait=False)
print("ended", NAME, together, flush=True)
