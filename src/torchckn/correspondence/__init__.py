"""What each operation of a ConvNet has become: the report of a translation as data, table, HTML and drawing.

``rows.py`` has the data, ``table.py``, ``page.py`` and ``drawing.py`` read it, ``report.py`` puts them together. A
:class:`Report` is saved with the network; :mod:`torchckn.translation` makes it.
"""

from .report import Report
from .rows import OtherNumber, Part, Row

__all__ = ["OtherNumber", "Part", "Report", "Row"]
