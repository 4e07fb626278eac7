"""Secure aggregation against a server that lies: every strategy of small sessions, and attacks on the real clients.

:mod:`~audits.protocol.knowledge` says in symbols which sums a server can compute after telling each client its own
story. :mod:`~audits.protocol.stories` goes through all stories of sessions of up to four clients, with every guard of
the protocol as a switch; :mod:`~audits.protocol.mailboxes` through all mailboxes of up to six clients;
:mod:`~audits.protocol.counts` through all numbers of clients that a strategy on the complete graph can consist of, at
any size; :mod:`~audits.protocol.circles` through all ways to cut a small sparse graph. :mod:`~audits.protocol.liar` is
such a server: it plays a story to real clients, those of :mod:`~audits.protocol.attacks` for instance.
"""
