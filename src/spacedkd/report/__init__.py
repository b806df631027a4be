"""Pages and pictures made from run folders alone. Reads JSON; never imports torch."""
