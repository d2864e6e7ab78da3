"""Training. The reading order: unsupervised, ``kmeans``, ``activations``, ``patches``, ``filters``, ``features``, ``targets``,
``solvers``, ``classifier``, ``folds``, ``head``; supervised, ``batch_model``, ``ulr``, ``chunks``, ``sphere``, ``schedules``,
``methods``, ``batches``, ``trials``, ``config``, ``callbacks``, ``signals``, ``state``, ``result``, ``loop``; and of what comes
out, ``conditioning``.
:mod:`torchckn.runs` puts it together.

The public names are in ``__init__.pyi``, imported when they are first used: ``config`` and ``schedules`` need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
