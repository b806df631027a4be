"""The configuration of a run: `spec` (what was asked for), `resolve` (what will be trained), recipes and overrides."""
