"""Benchmarks: `python -m bench NAME`. Each prints what it ran on, and `--json` prints the same as JSON.

Standard error hears meanwhile what is being done, and each run's figure.
"""
