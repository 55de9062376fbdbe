"""weft for PyTorch: gradients of DistributedDataParallel, a backend of torch.distributed, and optimizers.

    import weft.torch

    weft.torch.init_process_group()                        # the backend "weft", with the ranks of the job
    model = torch.nn.parallel.DistributedDataParallel(model)
    hook = weft.torch.register_ddp_hook(model, codec="powersgd:rank=4")

docs/python-torch.md has each surface with an example; the optimizers of weft.torch.optim need no process
group.
"""

from . import _backend, _rendezvous
from ._ddp_hook import DDPHook, ddp_hook, register_ddp_hook
from ._rendezvous import init_process_group
from .optim import DistributedOptimizer, Optimizer
from .outer_optim import OuterOptimizer

__all__ = [
    "DDPHook",
    "DistributedOptimizer",
    "Optimizer",
    "OuterOptimizer",
    "ddp_hook",
    "init_process_group",
    "register_ddp_hook",
]

_backend.register()
_rendezvous.register()
