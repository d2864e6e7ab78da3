"""Benchmarks, as ratios to baselines that are timed in the same run: ``make bench``, or ``python -m benchmarks``."""
