"""Images and labels, in the forms that people have them."""

from .batches import batches, size_of

__all__ = ["batches", "size_of"]
