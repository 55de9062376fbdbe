"""Functions of the DDP hook and of the optimizers: codecs of parameters, hooks of gradients, saved bytes."""

import torch


def codec_of(codec, name, parameter):
    """The codec of one parameter: `codec` is None, a string, a dict by name, or a function of name and parameter."""
    if callable(codec):
        return codec(name, parameter)
    if isinstance(codec, dict):
        return codec.get(name)
    return codec


class _AccumulatorHook:
    """Handle with the interface of register_post_accumulate_grad_hook, for PyTorch before 2.1."""

    def __init__(self, parameter, function):
        with torch.enable_grad():
            # The hook belongs to this node, which only this object keeps alive between backward passes.
            self._node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(lambda *_: function(parameter))

    def remove(self):
        self._handle.remove()


def on_gradient(parameter, function):
    """Call function(parameter) each time its gradient has been accumulated; returns a handle with remove()."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)
    return register(function) if register else _AccumulatorHook(parameter, function)


def bytes_to_tensor(data):
    """A tensor of bytes for a state_dict. torch.frombuffer refuses an empty buffer."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def tensor_to_bytes(tensor):
    """The bytes of bytes_to_tensor, on any device."""
    return tensor.cpu().contiguous().numpy().tobytes()
