"""What each operation of a ConvNet has become: the report of a translation as data, table, HTML and drawing.

``rows.py`` has the data, ``table.py``, ``page.py`` and ``drawing.py`` read it, ``report.py`` puts them together. A
:class:`Report` is saved with the network; :mod:`torchckn.translation` makes it.
"""

from .report import Report
from .rows import Part, Row, number_note

__all__ = ["Part", "Report", "Row", "number_note"]
