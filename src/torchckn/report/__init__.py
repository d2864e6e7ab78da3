"""Runs as one HTML page that opens anywhere: no server, no network, nothing beside the file.

``folder.py`` reads a run folder and says what it lacks, ``charts.py`` has the curves, ``pictures.py`` the images,
``confusion.py`` what a network gets wrong. ``page.py`` puts them together, with the facts of :mod:`torchckn.fit.conditioning`;
``template/`` has the template, the style and the script.
"""

from __future__ import annotations

from .page import write

__all__ = ["write"]
