"""Numbers as text. What is rounded to zero is written without a sign: never "-0.0 %"."""

from __future__ import annotations


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as a percentage.

    Example:
        >>> percent(0.9876), percent(-1e-9)
        ('98.8 %', '0.0 %')
    """
    return f"{100 * fraction:z.{digits}f} %"


def number(value: float) -> str:
    """A number to four digits.

    Example:
        >>> number(0.0312512), number(-0.0)
        ('0.03125', '0')
    """
    return f"{value:z.4g}"
