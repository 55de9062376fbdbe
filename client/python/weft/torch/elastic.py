"""A training loop that continues when workers are lost or added (weft run --min-workers)."""

import io

import torch

import weft

from ._tensors import bytes_to_tensor, tensor_to_bytes
from .optim import Optimizer


def run(train_step, model, optimizer, steps, *, extra=None, session=None):
    """Call train_step(number) until step `steps` has ended well; return the number of changes of the ranks.

    train_step computes the gradients of this rank's samples and calls optimizer.step() once, a DistributedOptimizer or an Optimizer.
    Ranks may be lost at any moment: the survivors discard the open step and call train_step again with the same
    number, with new values of session.rank and session.ranks. Ranks that are new (--restarts, --max-workers) take model,
    optimizer and `extra` from rank 0 first. A job with fewer than --min-workers ends with weft.PeerLost.

    extra: an object with state_dict and load_state_dict, such as a scheduler or the position in the data. An
    exception of train_step other than weft's leaves the loop.
    """
    session = session or weft.session()
    shared, changes = not session.newcomer, 0
    while session.step_next <= steps:
        try:
            if not shared:
                share(model, optimizer, extra, session)
            train_step(session.step_next)
            shared = True
        except weft.Shrunk:
            changes += 1
        except weft.Grew:
            shared, changes = False, changes + 1
        except weft.PeerLost:
            shared = _agree(session) and shared
            changes += 1
    return changes


def _agree(session):
    """After a loss outside a step: agree on the ranks that are left. Return False where ranks are new."""
    try:
        session.shrink()
    except weft.Shrunk:
        pass
    except weft.Grew:
        return False
    return True


def share(model, optimizer, extra=None, session=None):
    """Copy rank 0's model, optimizer and extra state to all ranks. Collective, between steps; blocks."""
    session = session or weft.session()
    own = isinstance(optimizer, Optimizer)  # its arrays are in tensors of the session
    state = {}
    if session.rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.options_dict() if own else optimizer.state_dict(),
                 "extra": extra.state_dict() if extra is not None else None}  # fmt: skip
    state = _broadcast(state, session)
    if session.rank != 0:
        model.load_state_dict(state["model"])
        state["optimizer"].pop("weft_residual", None)  # rank 0's own
        (optimizer.load_options_dict if own else optimizer.load_state_dict)(state["optimizer"])
        if extra is not None:
            extra.load_state_dict(state["extra"])
    if own:
        optimizer.share()


def _broadcast(state, session):
    file = io.BytesIO()
    if session.rank == 0:
        torch.save(state, file)
    data = bytes_to_tensor(file.getvalue())
    count = torch.tensor([data.numel()])
    session.broadcast(count).wait()
    if session.rank != 0:
        data = torch.empty(int(count), dtype=torch.uint8)
    session.broadcast(data).wait()
    return torch.load(io.BytesIO(tensor_to_bytes(data)), weights_only=True)
