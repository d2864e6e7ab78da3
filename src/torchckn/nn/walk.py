"""The modules and parameters of a network, for what is done in every step: in a fraction of the time of ``net.modules()``."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as modules


def modules_of(net: nn.Module) -> list[nn.Module]:
    """Those of ``net.modules()``, in the same order."""
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [net]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting.extend(reversed(module._modules.values()))
    return list(found)


def parameters_of(net: nn.Module) -> list[nn.Parameter]:
    """Those of ``net.parameters()``, in the same order."""
    parameters = (parameter for module in modules_of(net) for parameter in module._parameters.values())
    return list(dict.fromkeys(parameter for parameter in parameters if parameter is not None))


def is_trained(net: nn.Module) -> bool:
    """Whether any parameter is."""
    return any(parameter.requires_grad for parameter in parameters_of(net))


def must_be_called(module: nn.Module) -> bool:
    """Whether a call does more than its class says, for somebody watches the module or has replaced its ``forward``."""
    own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    of_all = modules._global_forward_hooks, modules._global_forward_pre_hooks
    of_all_backward = modules._global_backward_hooks, modules._global_backward_pre_hooks
    return any((*own, *of_all, *of_all_backward)) or "forward" in vars(module)
