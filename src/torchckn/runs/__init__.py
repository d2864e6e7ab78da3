"""A training run: :func:`torchckn.train`, and the folder that keeps what it does.

=====================  ======================================================================
``config.toml``        the training configuration, digests of network and data, settings
``environment.json``   versions, hardware, git state
``metrics.jsonl``      one line per step: loss, accuracy, lr, seconds; validation where it took place
``checkpoint/``        ``last.safetensors`` to resume from, the one before it, ``filters-*.safetensors`` for pictures
``model/``             the trained network, once it is finished
``result.json``        the result, once it is finished
``figures/``           pictures
=====================  ======================================================================

Files are written so that nothing is ever half there. The reading order: ``reading``, ``checkpoints``, ``folder``, ``callbacks``,
``digests``, ``trainer``. The public names are in ``__init__.pyi``, imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
