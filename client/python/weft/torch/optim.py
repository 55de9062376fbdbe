"""Optimizers: torch's own on averaged gradients, or weft's on the shards and in all-reduce mode."""

import contextlib

import torch

import weft

from . import _groups
from ._exchange import GradientExchange, contiguous
from ._tensors import bytes_to_tensor, codec_of, tensor_to_bytes
from .outer_optim import OuterOptimizer


class DistributedOptimizer:
    """A torch optimizer whose gradients are the mean over all ranks.

        optimizer = weft.torch.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model.named_parameters())
        loss.backward()                     # each gradient travels while the backward pass runs
        optimizer.step()                    # waits for the rest and updates

    codec: None (dense), a string such as "powersgd:rank=4" or "auto", a dict by parameter name, or a function
    (name, parameter) -> codec. accumulate: backward passes per step; or suspend the exchange with no_sync().
    find_unused_parameters: a parameter without a gradient on every rank keeps grad None, as in
    DistributedDataParallel; without it a missing gradient raises WrongState. Rank 0's parameters are copied to all
    ranks at the start, unless broadcast_parameters is False.

    synchronize() ends the exchange before step(), to clip gradients or to unscale them. Gradients are not finite
    and a codec is in use: no rank takes the step, `skipped` is True, and the first gradient is filled with infinity
    so that torch.amp.GradScaler lowers its scale on all ranks.

    In an elastic job step() raises Shrunk or Grew after a change of ranks; no rank has taken the step
    (weft.torch.elastic has the loop).

    outer: for slow links, the keywords of Session.outer_steps, such as {"every": 100}: each rank trains alone, and the
    ranks exchange weights instead of gradients. The result is an OuterOptimizer, and the other options are not available.

    Other attributes are those of the torch optimizer: parameter groups, schedulers, state.
    """

    def __new__(cls, optimizer, named_parameters, *, outer=None, session=None, **options):
        if outer is None:
            return super().__new__(cls)
        if options:
            raise weft.InvalidArgument(f"DistributedOptimizer: {', '.join(sorted(options))} and outer exclude each other; the "
                                       "codec of the exchanged weights is outer[\"codec\"]")  # fmt: skip
        return OuterOptimizer(optimizer, named_parameters, outer, session=session)

    def __init__(self, optimizer, named_parameters, *, codec=None, accumulate=1, find_unused_parameters=False,
                 broadcast_parameters=True, prefix=None, session=None, outer=None):  # fmt: skip
        self._session, self._optimizer = session or weft.session(), optimizer
        prefix = self._session._prefix("optimizer") if prefix is None else prefix
        self._find_unused, self._synchronized, self._copies = find_unused_parameters, False, {}
        self.skipped = False

        def declare(name, parameter):
            return self._session.declare(prefix + name, tuple(parameter.shape) or (1,), parameter.dtype,
                                         mode="all_reduce", codec=codec_of(codec, name, parameter))  # fmt: skip

        self._exchange = GradientExchange(self._session, named_parameters, declare, self._push, self._missing, accumulate)
        if broadcast_parameters and not self._session.newcomer:
            for _, parameter in self._exchange.parameters:
                value = contiguous(parameter.data)
                self._session.broadcast(value).wait()
                if value is not parameter.data:
                    parameter.data.copy_(value)

    def __getattr__(self, name):
        return getattr(self.__dict__["_optimizer"], name)

    def _push(self, index, parameter):
        gradient = contiguous(parameter.grad)
        if gradient is not parameter.grad:
            self._copies[index] = gradient
        return self._exchange.tensors[index].push_pull(gradient)

    def _missing(self, index, parameter):
        parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        return self._exchange.tensors[index].push_pull(parameter.grad)

    @property
    def sample_weight(self):
        """Weight of this rank's gradients in the mean of the next step, such as its number of samples; default 1."""
        return self._exchange.sample_weight

    @sample_weight.setter
    def sample_weight(self, weight):
        self._exchange.sample_weight = weight

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes in this block add to the gradients and exchange nothing."""
        self._exchange.suspended = True
        try:
            yield
        finally:
            self._exchange.suspended = False

    def synchronize(self):
        """Wait until every gradient is the mean over all ranks. step() does it if it was not done."""
        uses, self.skipped = None, False
        try:
            uses = self._exchange.finish(count_uses=self._find_unused)
        except weft.StepSkipped:
            self.skipped = True
            self._exchange.parameters[0][1].grad.fill_(float("inf"))
        except (weft.Shrunk, weft.Grew, weft.PeerLost):
            self._copies.clear()
            raise
        for index, copy in self._copies.items():
            self._exchange.parameters[index][1].grad.copy_(copy)
        self._copies.clear()
        for index, (_, parameter) in enumerate(self._exchange.parameters):
            if uses is not None and not uses[index]:
                parameter.grad = None
        self._synchronized = True

    def skip_step(self):
        """Call it instead of backward() where this rank has no usable gradient: no rank takes the step.

        All ranks call step() as ever, and `skipped` is True. In an elastic job with shards it is not supported.
        """
        self._exchange.skip()

    def _refuse_missing(self):
        if self._find_unused or self._exchange.skips:
            return
        parameters, ready = self._exchange.parameters, self._exchange.ready
        names = [name for index, (name, _) in enumerate(parameters) if index not in ready]
        if names:
            raise weft.WrongState(
                f"{len(names)} parameters have no gradient in this step, the first is {names[0]!r}; pass "
                "find_unused_parameters=True where ranks may leave out parameters, or step() after a backward pass"
            )

    def step(self, closure=None):
        """Wait for the gradients and take a step of the torch optimizer; take none where the step is skipped."""
        if closure is not None:
            raise weft.Unsupported("DistributedOptimizer.step takes no closure; call backward before it")
        if not self._synchronized:
            self._refuse_missing()
            self.synchronize()
        self._synchronized = False
        return None if self.skipped else self._optimizer.step()

    def zero_grad(self, set_to_none=True):
        """Clear the gradients."""
        if self._exchange.begun and not self._synchronized:
            raise weft.WrongState("zero_grad: gradients are under way; call step() or synchronize() first")
        self._synchronized = False
        self._optimizer.zero_grad(set_to_none)

    def close(self):
        """Free the optimizer's tensors and hooks. Collective, between steps; blocks."""
        self._exchange.close()

    def state_dict(self):
        """The torch optimizer's state, and under "weft_residual" this rank's unsent part of the gradients.

        Save it on every rank where a codec is in use: the residual is this rank's own.
        """
        state = self._optimizer.state_dict()
        state["weft_residual"] = _residuals(self._exchange)
        return state

    def load_state_dict(self, state):
        """Restore state_dict. A rank without a file, in a job of more ranks, loads another rank's without the residual."""
        state = dict(state)
        _load_residuals(self._exchange, state.pop("weft_residual", {}))
        self._optimizer.load_state_dict(state)


def _residuals(exchange):
    return {
        name: bytes_to_tensor(tensor.residual())
        for (name, _), tensor in zip(exchange.parameters, exchange.tensors)
    }


def _load_residuals(exchange, residuals):
    for (name, _), tensor in zip(exchange.parameters, exchange.tensors):
        if name in residuals:
            tensor.load_residual(tensor_to_bytes(residuals[name]))


def _check_parameters(named, has_shards, scaler, clip_norm):
    for name, parameter in named:
        kind = parameter.device.type
        halves = (torch.bfloat16, torch.float16) if has_shards and kind == "cpu" else ()
        if parameter.dtype not in (torch.float32, *halves) or not parameter.data.is_contiguous() or kind not in ("cpu", "cuda"):
            raise weft.Unsupported(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; weft.torch.Optimizer updates contiguous "
                "float32 parameters in host memory or on CUDA devices, and in host memory through shards bfloat16 and "
                "float16 ones; use DistributedOptimizer"
            )
        if kind == "cuda" and (scaler is not None or clip_norm):
            raise weft.Unsupported(
                f"parameter {name!r} is on {parameter.device}: scaler and clip_norm need parameters in host memory, where "
                "an update can be undone; use DistributedOptimizer"
            )


def _init(tensor, parameter):
    """Set a tensor's first weights; weft_tensor_init needs host memory."""
    if parameter.device.type == "cpu":
        tensor.init(parameter.data)
        return
    weights = parameter.data.cpu()
    tensor.init(weights)
    parameter.data.copy_(weights)


class Optimizer(torch.optim.Optimizer):
    """weft's optimizer: weights live and update on the shards, or on every rank in all-reduce mode.

        optimizer = weft.torch.Optimizer(model.named_parameters(), "adamw:weight_decay=0.01", lr=1e-3)
        loss.backward()
        optimizer.step()                    # parameters hold the new weights

    named_parameters: pairs (name, parameter), or parameter groups: dicts with "params", such pairs, and "lr" or
    "weight_decay" of the group. rule: a rule of weft_tensor_options.optimizer, or a function (name, parameter) ->
    rule. mode: "server", "all_reduce", default by the job. codec, accumulate, no_sync: as in DistributedOptimizer. A
    parameter without a gradient on this rank contributes zeros. Make the optimizer before the session's first step, or
    on a new rank of an elastic job: the step's number is the number of updates in Adam's bias correction.

    Each step takes "lr" and "weight_decay" of param_groups, so torch's schedulers work. A new weight may be written as
    soon as its gradient is accumulated. Parameters are float32, in host memory or on a CUDA device; there the update runs
    on the host or the shards, and scaler and clip_norm are not available. Through shards parameters in host memory are
    also bfloat16 or float16: the shards keep them in float32, and update that. pull_dtype: "bf16" or "f16", through
    shards: float32 parameters get the shards' weights rounded, half the bytes. Both without a codec.

    scaler: a torch.amp.GradScaler whose scale(loss) the backward pass uses; weights and residuals see unscaled
    gradients, a step that is not finite is skipped on all ranks, and step() updates the scale. clip_norm: limit of the
    global norm of the mean gradients, an attribute; with a codec in all-reduce mode alone. `grad_norm` is the norm of the
    last step.
    consistency: "ssp:4" or "asp", so that a rank need not wait for slower ones, in server mode without a codec.
    """

    def __init__(self, named_parameters, rule, lr, *, mode=None, codec=None, accumulate=1, skip_nonfinite=False,
                 scaler=None, clip_norm=None, prefix=None, session=None, consistency=None, pull_dtype=None):  # fmt: skip
        self._session, self._scaler, self._good_steps, self.skipped = session or weft.session(), scaler, 0, False
        self.clip_norm, self._loss_scale = clip_norm, 1.0
        groups = _groups.split(named_parameters, lr)
        named = [pair for _, pairs in groups for pair in pairs]
        has_shards = (mode or ("server" if self._session.shards else "")) == "server"
        _check_parameters(named, has_shards, scaler, clip_norm)
        if self._session.step_next != 1 and not self._session.newcomer:
            raise weft.WrongState(
                "weft.torch.Optimizer is made before the session's first step: the step's number is the number of updates in "
                "the rules adam, adamw and lamb; use DistributedOptimizer for a model that is made later"
            )
        if clip_norm and codec and has_shards:
            raise weft.Unsupported("clip_norm needs the means of all gradients before an update, and shards hold those of "
                                   'tensors without a codec; pass mode="all_reduce"')  # fmt: skip
        for options, _ in groups:
            options.setdefault("weight_decay", None if callable(rule) else _groups.decay_of(rule))
        self._decays = [options["weight_decay"] for options, _ in groups]
        super().__init__(
            [{**options, "params": [parameter for _, parameter in pairs]} for options, pairs in groups], {"lr": lr}
        )
        prefix = self._session._prefix("optimizer") if prefix is None else prefix
        group_of = {name: index for index, (_, pairs) in enumerate(groups) for name, _ in pairs}

        def declare(name, parameter):
            text = rule(name, parameter) if callable(rule) else rule
            group = group_of[name]
            if text.partition(":")[0] != "ftrl" or self._decays[group]:
                text = _groups.with_decay(text, self._decays[group])
            rounded = pull_dtype if parameter.dtype == torch.float32 else None
            tensor = self._session.declare(prefix + name, tuple(parameter.shape) or (1,), parameter.dtype, mode=mode,
                                           optimizer=text, pull_dtype=rounded,
                                           codec=codec_of(codec, name, parameter), group=group, consistency=consistency,
                                           skip_nonfinite=skip_nonfinite or scaler is not None)  # fmt: skip
            if not self._session.newcomer:  # a newcomer gets the weights of the others by share
                _init(tensor, parameter)
            return tensor

        self._exchange = GradientExchange(self._session, named, declare, self._push, self._missing, accumulate,
                                          self._step_options)  # fmt: skip

    no_sync = DistributedOptimizer.no_sync
    close = DistributedOptimizer.close
    skip_step = DistributedOptimizer.skip_step
    sample_weight = DistributedOptimizer.sample_weight

    def _push(self, index, parameter):
        gradient = contiguous(parameter.grad)
        if self._scaler is not None and self._loss_scale == 1.0:
            gradient = gradient.mul_(1 / self._scaler.get_scale())
        return self._exchange.tensors[index].push_pull(gradient, parameter.data)

    def _missing(self, index, parameter):
        tensor = self._exchange.tensors[index]
        if parameter.device.type == "cpu":
            return tensor.push_none()
        return tensor.push_pull(torch.zeros_like(parameter), parameter.data)

    def step(self, closure=None):
        """Wait until the parameters hold the new weights. `skipped`: no rank has taken the step."""
        if closure is not None:
            raise weft.Unsupported("weft.torch.Optimizer.step takes no closure; call backward before it")
        self.skipped = False
        try:
            self._exchange.finish()
        except weft.StepSkipped:
            self.skipped = True
        if self._scaler is not None:
            self._update_scale()

    def _step_options(self):
        """Keywords of Session.step_begin: what the parameter groups and the scaler have now."""
        groups = self.param_groups
        options = {"lr": groups[0]["lr"], "group_lr": [group["lr"] for group in groups]}
        decays = [group["weight_decay"] for group in groups]
        if decays != self._decays:
            if None in decays:
                raise weft.Unsupported("the weight decay of a parameter group has changed, and another group has none; "
                                       "give every group a weight_decay")  # fmt: skip
            options["group_weight_decay"] = decays
        if self.clip_norm:
            options["clip_norm"] = self.clip_norm
        self._loss_scale = 1.0
        if self._scaler is not None and _groups.is_power_of_two(self._scaler.get_scale()):
            self._loss_scale = self._scaler.get_scale()
        return {**options, "loss_scale": self._loss_scale}

    @property
    def grad_norm(self):
        """Global norm of the mean gradients of the last step with clip_norm, before clipping; None without."""
        return self._session.grad_norm

    def _update_scale(self):
        """GradScaler's rule: back off after a skipped step, grow after growth_interval good ones."""
        scaler = self._scaler
        self._good_steps = 0 if self.skipped else self._good_steps + 1
        if self.skipped:
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        elif self._good_steps >= scaler.get_growth_interval():
            scaler.update(scaler.get_scale() * scaler.get_growth_factor())
            self._good_steps = 0

    def zero_grad(self, set_to_none=True):
        """Clear the gradients. Raises WrongState while they are under way."""
        if self._exchange.begun:
            raise weft.WrongState("zero_grad: gradients are under way; call step() first")
        super().zero_grad(set_to_none)

    def state_dict(self):
        """Param groups, this rank's residuals, and on rank 0 the optimizer arrays with the step's number.

        Collective. Save rank 0's with the model, and every rank's where a codec is in use.
        """
        exchange = self._exchange
        arrays = {}
        if self._session.rank == 0:
            arrays = {
                name: bytes_to_tensor(tensor.state())
                for (name, _), tensor in zip(exchange.parameters, exchange.tensors)
            }
        self._session.barrier().wait()
        return {"param_groups": self._groups(), "weft_state": arrays, "weft_residual": _residuals(exchange)}

    def _groups(self):
        return [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]

    def options_dict(self):
        """Param groups and the scaler's state: what share() does not copy. Local."""
        scaler = None if self._scaler is None else self._scaler.state_dict()
        return {"param_groups": self._groups(), "scaler": scaler, "good_steps": self._good_steps}

    def load_options_dict(self, state):
        """Restore options_dict. Local."""
        for group, saved in zip(self.param_groups, state["param_groups"]):
            group.update(saved)
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self._good_steps = state["good_steps"]

    def share(self):
        """Copy rank 0's weights and optimizer arrays, or those of the shards, to all ranks. Required after Grew.

        Collective, between steps; blocks. weft.torch.elastic.share calls it and copies the rest.
        """
        exchange = self._exchange
        for (_, parameter), tensor in zip(exchange.parameters, exchange.tensors):
            tensor.share(parameter.data)

    def load_state_dict(self, state):
        """Restore state_dict before the first step; collective. Rank 0's arrays reach all ranks and shards.

        The parameters must hold the saved weights before this optimizer is made.
        """
        exchange = self._exchange
        _load_residuals(exchange, state.get("weft_residual", {}))
        for (name, _), tensor in zip(exchange.parameters, exchange.tensors):
            data = tensor_to_bytes(state["weft_state"][name]) if self._session.rank == 0 else None
            tensor.load_state(data)
        for group, saved in zip(self.param_groups, state["param_groups"]):
            group.update(saved)
