"""How tables of the paper are made again: what a table is, at which scale, from which runs, and what they say."""
