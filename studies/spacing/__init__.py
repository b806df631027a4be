"""What spacing, averaging and time do for distillation, on real images; PROTOCOL.md says how it is measured."""
