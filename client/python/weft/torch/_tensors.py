"""What the hook and the optimizers share about declared tensors: the codec of a parameter, and saved bytes."""

import torch


def codec_of(codec, name, parameter):
    """The codec of one parameter: `codec` is None, a string, a dict by name, or a function of name and parameter."""
    if callable(codec):
        return codec(name, parameter)
    if isinstance(codec, dict):
        return codec.get(name)
    return codec


def bytes_to_tensor(data):
    """A tensor of bytes for a state_dict. torch.frombuffer refuses an empty buffer."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def tensor_to_bytes(tensor):
    """The bytes of bytes_to_tensor, on any device."""
    return tensor.cpu().contiguous().numpy().tobytes()
