"""The report of a reproduced table, from its results.json alone: a page, Markdown, LaTeX, CSV and a terminal's lines.

`tables` has its tables as data and `findings` its sentences; `page` and `text` put them together, `figures` draws.
"""

from spacedkd.paper.report.page import write_index_page, write_table_page
from spacedkd.paper.report.tables import listing_table, result_tables
from spacedkd.paper.report.text import csv_text, index_markdown, latex, markdown, write_table

__all__ = [
    "csv_text",
    "index_markdown",
    "latex",
    "listing_table",
    "markdown",
    "result_tables",
    "write_index_page",
    "write_table",
    "write_table_page",
]
