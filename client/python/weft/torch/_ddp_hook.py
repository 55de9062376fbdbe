"""The communication hook of DistributedDataParallel (DDP): weft averages the gradients.

DDP calls the hook once per bucket in the backward pass, in the same order on all ranks. Each call starts the
bucket's operations and returns a future. The call for the last bucket waits for all operations and completes
all futures. No thread and no callback is needed, so the engine never waits for the GIL, and the transfers of
all buckets but the last overlap with the backward pass.

With a codec, each large parameter is a declared tensor. Its residual belongs to the parameter, not to a
bucket: DDP may rebuild its buckets at any time.

On CUDA tensors without a codec the calls are stream-ordered (_streams.py). The futures are complete at once, and
the streams that use them wait: no host thread does. With a codec the last bucket's call waits on the host,
because the end of the step decides whether the gradients are valid.
"""

import torch
import torch.distributed as dist

from .._abi import lib
from .._errors import InvalidArgument, StepSkipped
from .._session import session as current_session
from . import _streams
from ._pieces import described
from ._tensors import bytes_to_tensor, codec_of, tensor_to_bytes


def register_ddp_hook(model, codec=None, **options):
    """Make DDP `model` average its gradients with weft; return the DDPHook. Options are those of DDPHook."""
    hook = DDPHook(model, codec, **options)
    model.register_comm_hook(None, hook.average)
    return hook


def ddp_hook(model, codec=None, **options):
    """Return (state, hook) for `model.register_comm_hook(*weft.torch.ddp_hook(model, codec))`.

    state is the DDPHook, with state_dict and load_state_dict. Options are those of DDPHook.
    """
    hook = DDPHook(model, codec, **options)
    return hook, hook.hook


class DDPHook:
    """Averages the gradients of a DDP model over all ranks of the session.

    model: DistributedDataParallel, or the module inside it. codec: None, each gradient is the exact mean; or
    a codec's text such as "powersgd:rank=4", "topk:ratio=0.01", "bf16", "auto"; or a dict by parameter name
    or a function (name, parameter) with one of these. A text applies to the float32 parameters with two or
    more dimensions and at least codec_min elements; the others stay exact. mode: "server" or "all_reduce", of
    tensors with a codec; default by the job. prefix: begins the tensors' names, unique in the job.

    With a codec the constructor is collective: all ranks make the same hooks in the same order, outside a
    step. Each backward pass that DDP synchronises is then one step of the session. A gradient that is NaN or
    infinite makes the gradients of all parameters with a codec NaN on all ranks, so torch.amp.GradScaler
    skips the step. Errors such as weft.PeerLost leave the backward pass as exceptions.
    """

    def __init__(self, model, codec=None, *, codec_min=1024, mode=None, prefix=None, session=None):
        self._session = session or current_session()
        self._check_group(model)
        self._tensors = {}  # id of a parameter: its Tensor
        self._parameters = []  # keeps the ids above valid
        self._pending = []  # (bucket's buffer, future), of this backward pass
        self._requests, self._coded = [], []
        self._in_step = False
        if codec is not None:
            self._declare(model, codec, codec_min, mode, prefix)

    def _check_group(self, model):
        size = getattr(getattr(model, "process_group", None), "size", lambda: self._session.ranks)()
        if size != self._session.ranks:
            raise InvalidArgument(
                f"the model's process group has {size} ranks, and the weft session has "
                f"{self._session.ranks}; the hook averages over all ranks of the session, so both must be equal"
            )

    def _declare(self, model, codec, codec_min, mode, prefix):
        if prefix is None:
            prefix = self._session._prefix("ddp")
        for name, parameter in getattr(model, "module", model).named_parameters():
            if not parameter.requires_grad:
                continue
            fits = not isinstance(codec, str) or _is_large(parameter, codec_min)
            chosen = codec_of(codec, name, parameter) if fits else None
            if chosen is not None:
                tensor = self._session.declare(prefix + name, tuple(parameter.shape), codec=chosen, mode=mode)
                self._tensors[id(parameter)] = tensor
                self._parameters.append(parameter)
        if not self._tensors:
            raise InvalidArgument(
                "no parameter of the model takes the codec: none is float32 with two dimensions and at least "
                f"{codec_min} elements; lower codec_min, or pass codec=None"
            )

    # ---- the backward pass ----

    @staticmethod
    def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook of ddp_hook: `state` is a DDPHook."""
        return state.average(None, bucket)

    def average(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the average of a bucket; in the last one's call wait for all. DDP calls it, on one thread."""
        buffer = bucket.buffer()
        if buffer.device.type == "cuda" and not self._tensors:
            return self._average_on_stream(buffer)
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        self._pending.append((buffer, future))
        if self._tensors:
            self._start_coded(bucket, buffer)
        else:
            self._requests.append(self._session.all_reduce(buffer, op="avg"))
        if bucket.is_last():
            self._complete()
        return future

    def _average_on_stream(self, buffer):
        """Start the average of a bucket on a side stream; return a complete future of its place there."""
        with _streams.side_streams.region(buffer.device, [buffer]) as order:
            address, count, dtype, _ = described(buffer)
            self._session.call(
                lib.WEFT_CALL_ALL_REDUCE,
                address,
                address,
                count,
                dtype,
                op=lib.WEFT_AVG,
                keep=buffer,
                **_streams.call_fields(buffer),
            )
        return order.complete(buffer)

    def _start_coded(self, bucket, buffer):
        """Start the push_pull of each parameter with a codec, and exact averages of the ranges between."""
        if not self._in_step:
            self._session.step_begin()
            self._in_step = True
        with self._session.group():  # small operations and equal shapes travel together
            for start, end in self._push(bucket, buffer):
                self._requests.append(self._session.all_reduce(buffer[start:end], op="avg"))

    def _push(self, bucket, buffer):
        """Start the push_pull of each parameter with a codec; return the other ranges (start, end)."""
        ranges = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            start = gradient.storage_offset() - buffer.storage_offset()
            end = start + gradient.numel()
            tensor = self._tensors.get(id(parameter))
            if tensor is not None:
                # The flat piece is contiguous for every memory format of the parameter.
                piece = buffer[start:end]
                self._coded.append((tensor.push_pull(piece), piece))
            elif ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges

    def _complete(self):
        pending, requests, coded, in_step = self._pending, self._requests, self._coded, self._in_step
        self._pending, self._requests, self._coded, self._in_step = [], [], [], False
        for request in requests:
            request.wait()
        if in_step:
            try:
                for request, _ in coded:
                    request.wait()
            except StepSkipped:
                pass  # the end of the step has it too
            try:
                self._session.step_end()
            except StepSkipped:
                for _, piece in coded:
                    piece.fill_(float("nan"))
        for buffer, future in pending:
            future.set_result(buffer)

    # ---- checkpoints ----

    def state_dict(self):
        """Return what the codecs of this rank have not sent yet, as a dict of tensors of bytes. Between
        steps.

        Each rank saves its own dict. Does not block without shards; all ranks call it after the same step.
        """
        state = {}
        for tensor in self._tensors.values():
            state[tensor.name] = {"residual": bytes_to_tensor(tensor.residual())}
            if self._session.rank == 0:
                state[tensor.name]["state"] = bytes_to_tensor(tensor.state())
        return state

    def load_state_dict(self, state):
        """Restore state_dict. Collective, after the hook is made and before the first backward pass; blocks.

        A job with the same number of ranks then continues bit for bit. A rank without a dict, of a larger
        job, passes {}. Raises weft.Malformed where the bytes are damaged or of another tensor.
        """
        for tensor in self._tensors.values():
            saved = state.get(tensor.name, {})
            if "residual" in saved:
                tensor.load_residual(tensor_to_bytes(saved["residual"]))
            tensor.load_state(
                tensor_to_bytes(saved["state"]) if self._session.rank == 0 and "state" in saved else None
            )

    def close(self):
        """Free the declared tensors. Collective, between steps; blocks. The hook must not run afterwards."""
        tensors, self._tensors = self._tensors, {}
        for tensor in tensors.values():
            tensor.free()


def _is_large(parameter, codec_min):
    return parameter.dtype == torch.float32 and parameter.dim() >= 2 and parameter.numel() >= codec_min
