"""Benchmarks: one module per question, with a common output format (`report`).

`python -m bench` lists the benchmarks. The main figures are ratios within one run and CPU time per entry, which repeat
better than wall-clock time; that is printed, too. `docs/performance.md` has the results of the reference machine.
"""
