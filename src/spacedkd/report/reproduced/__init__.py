"""A table of the paper, made again: as Markdown, LaTeX, CSV, a page and lines in a terminal, all from its results.json."""

from spacedkd.report.reproduced.index import index_markdown, write_index_page
from spacedkd.report.reproduced.latex import latex
from spacedkd.report.reproduced.page import write_table_page
from spacedkd.report.reproduced.tables import listing_table, result_tables
from spacedkd.report.reproduced.texts import csv_text, markdown

__all__ = [
    "csv_text",
    "index_markdown",
    "latex",
    "listing_table",
    "markdown",
    "result_tables",
    "write_index_page",
    "write_table_page",
]
