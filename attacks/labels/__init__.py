"""Which labels a client holds, and how many of each."""
