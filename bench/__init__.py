"""Measurements: one file per question, one way to print a result (`report`).

`python -m bench` lists the questions. Speed is a ratio within one run or CPU time per entry; wall clock stands
beside it. The results of the reference machine are in `docs/performance.md`.
"""
