"""torchft_manager.py NAME DIES - one replica of test_torchft.py under torchft's own manager and lighthouse.

Each step averages a tensor of the replicas that take part. DIES "yes": the replica is killed after three steps with
another one. The other one ends after three more steps alone.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager

import weft.torch.torchft

NAME, DIES = sys.argv[1], sys.argv[2] == "yes"
torch.set_num_threads(1)
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
    together += manager.num_participants() == 2
    alone += together > 0 and manager.num_participants() == 1
    print("committed", NAME, state["steps"], manager.num_participants(), flush=True)
    if DIES and together == 3:
        os.kill(os.getpid(), signal.SIGKILL)
manager.shutdown(wait=False)
print("ended", NAME, together, flush=True)
