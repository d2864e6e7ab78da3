"""Faults on purpose: damaged and hostile files, wrong command lines, kills at every write, no memory, no space.

Every fuzzer is seeded, runs in a process of its own with little memory, and counts what happened. A sample of each is part of
``make test``; ``make slow`` runs all of them and prints the counts, which ``docs/safety.md`` has.
"""
