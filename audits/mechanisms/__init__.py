"""Audits of one mechanism by itself: local randomisers, and the raw noise."""
