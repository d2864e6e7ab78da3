"""ConvNets, as published. :func:`torchckn.translate` makes their kernel counterparts.

Paper: appendix "Mathematical description of ConvNets" for LeNet-1, LeNet-5 and All-CNN-C. ``filters=None`` gives the original
widths, ``filters=f`` gives every layer but the last f filters. Every network has the ``input_shape`` of its usual images.

Example:
    >>> from torchckn import zoo
    >>> zoo.names()[:4]
    ['alexnet', 'allcnn', 'convnext-atto', 'densenet']
    >>> net = zoo.build("lenet5", filters=32)
    >>> net.input_shape
    (1, 32, 32)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
