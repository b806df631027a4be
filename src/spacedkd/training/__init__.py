"""How a run is trained, saved and continued."""
