"""Parameter groups of weft.torch.Optimizer: their learning rates, and weight decays in the text of a rule."""

import math
import re

from .._errors import Unsupported

_DECAY = re.compile(r"\bweight_decay=([^,]*)")


def split(named_parameters, lr):
    """Return [(options, [(name, parameter), ...]), ...] with options of each group; parameters require gradients.

    named_parameters: pairs (name, parameter), or dicts with "params", pairs as well, and options of the group.
    """
    entries = list(named_parameters)
    if not entries or not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    groups = []
    for entry in entries:
        options = {"lr": lr, **{key: value for key, value in entry.items() if key != "params"}}
        groups.append((options, [(name, parameter) for name, parameter in entry["params"] if parameter.requires_grad]))
    return [(options, pairs) for options, pairs in groups if pairs]


def with_decay(rule, decay):
    """The text of `rule` with this weight decay; None: as it is."""
    if decay is None:
        return rule
    if rule.partition(":")[0] == "ftrl":
        raise Unsupported("the rule ftrl has no weight decay; leave weight_decay out of its parameter group")
    rest = _DECAY.sub("", rule.partition(":")[2]).strip(",").replace(",,", ",")
    return f"{rule.partition(':')[0]}:" + ",".join(filter(None, [rest, f"weight_decay={decay!r}"]))


def decay_of(rule):
    """The weight decay in the text of a rule."""
    found = _DECAY.search(rule)
    return float(found.group(1)) if found else 0.01 if rule.partition(":")[0] in ("adamw", "lamb") else 0.0


def is_power_of_two(scale):
    """Whether the library accepts `scale` as a loss scale."""
    return scale > 0 and math.isfinite(scale) and math.frexp(scale)[0] == 0.5 and 2.0**-60 <= scale <= 2.0**60
