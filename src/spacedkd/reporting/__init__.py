"""Reports: tables, charts and pages made from JSON files alone, without torch.

`table.Table` is the one table; `html`, `terminal`, `markdown`, `latex` and `csv` render it. `page.write_page` writes
the page of a comparison, `tables` has its tables, `findings` its sentences; `formatting` writes numbers as text.
"""
