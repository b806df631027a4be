"""What a run sees: where images come from, and which batch belongs to which step."""
