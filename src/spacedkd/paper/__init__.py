"""Reproduction of the paper's tables, figures and theory; only the command line imports this package.

`reproduce.reproduce` reproduces tables; `tables` has a file for each, `catalogue` lists them, `scales` are the sizes
they are made at. `store` keeps their runs, `results` and `verdict` compare them with the paper's numbers, and `report`
writes them. `theory` measures the paper's Lemma and Theorem.
"""
