"""How many examples a client holds."""
