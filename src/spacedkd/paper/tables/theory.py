"""A teacher that is ahead has a lower risk (Lemma), and its student ends in flatter minima (Theorem).

Measured where they are stated, on wide networks with squared error; see docs/theory.md. It has no cells: the numbers
are those of `spacedkd theory`.

Cost of all seeds: minutes at smoke, minutes at cpu, minutes at paper.

    spacedkd reproduce theory --scale cpu
"""

from spacedkd.paper.table import Table

TABLE = Table("Lemma and Theorem", "sec. kd_theory", 14, lambda scale: ())
