"""A federation over a network: a server and long-lived clients who share nothing but signed messages."""
