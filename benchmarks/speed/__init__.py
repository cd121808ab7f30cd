"""One table of everything that a user waits for: `python benchmarks/run.py`, or `make bench`.

Each file but `rows.py`, `limits.py` and `page.py` is a part: it measures one thing at two sizes at least,
beside the best rival that a user could pick and the limit of the machine, all taking turns, and gives rows
of the table.
"""
