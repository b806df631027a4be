"""The renderer of tables as CSV."""

import csv
import io

from spacedkd.reporting.table import Table


def csv_table(table: Table) -> str:
    """Return a table as CSV, a line for each row below a line of titles.

    >>> from spacedkd.reporting.table import Cell, Column
    >>> csv_table(Table("", [Column(None, None, document="a, b")], [[Cell("1")]]))
    '"a, b"\\n1\\n'
    """
    columns = table.document_columns()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([column.document for _, column in columns])
    lines.writerows([row[index].in_document for index, _ in columns] for row in table.rows)
    return text.getvalue()
