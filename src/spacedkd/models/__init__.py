"""What learns: networks by name, and the heads that read them."""
