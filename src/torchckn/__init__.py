"""torchckn: give it a ConvNet, and it gives back the kernel network that the ConvNet was approximating.

The reading order is that of the paper, *Kernel-based Translations of Convolutional Networks* (Jones, Roulet, Harchaoui):
``kernels`` -> ``nn.invsqrt`` -> ``nn.functional`` -> ``nn.layers`` -> ``graph`` -> ``network`` -> ``exact`` -> ``translation``
-> ``fit`` -> ``runs``.

The public names are in ``__init__.pyi``. Each is imported when it is first used, so that the command line need not wait for
torch to say what it can do.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
