"""Measurements, as ratios against baselines timed in the same run: ``make bench``, or ``python -m benchmarks``."""
