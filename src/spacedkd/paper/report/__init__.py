"""A table of the paper, made again: a page, Markdown, LaTeX, CSV and lines in a terminal, all from its results.json."""

from spacedkd.paper.report.index import index_markdown, write_index_page
from spacedkd.paper.report.latex import latex
from spacedkd.paper.report.markdown import csv_text, markdown
from spacedkd.paper.report.page import write_table_page
from spacedkd.paper.report.tables import listing_table, result_tables

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
