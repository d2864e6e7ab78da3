"""What a page may do, as a content security policy: run the script that it was written with, and nothing else.

Data from files is only shown. Should a name or a value ever reach a page without being escaped, the browser would
still refuse to run it, because its hash is not that of our script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable


def content_policy(scripts: Iterable[str], styles: Iterable[str], **more: str) -> str:
    """A policy that allows these inline scripts and style sheets and images that are part of the page, and nothing else.

    Args:
        more: other directives, with ``_`` for ``-``, such as ``connect_src="'self'"``
    """
    directives = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": " ".join(map(inline_hash, styles)),
        "script-src": " ".join(map(inline_hash, scripts)),
        "base-uri": "'none'",
        "form-action": "'none'",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def inline_hash(text: str) -> str:
    """The hash of what is between ``<script>`` and ``</script>``, or between ``<style>`` and ``</style>``."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
