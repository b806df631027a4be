"""Comparisons: arms times seeds, trained at once with shared teachers, and what their differences say."""
