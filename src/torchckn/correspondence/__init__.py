"""What became of each operation of a ConvNet: the report of a translation as data, table, HTML and drawing.

A :class:`Report` is plain data that is saved with the network; :mod:`torchckn.translation` makes it.
"""

from .report import Report, Row

__all__ = ["Report", "Row"]
