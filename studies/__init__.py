"""Studies: questions about distillation that are answered by many runs; each has a protocol, numbers and a page."""
