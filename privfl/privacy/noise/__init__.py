"""Where noise comes from: the key stream, and exact integer noise."""
