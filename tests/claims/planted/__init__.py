"""Defects planted for the claim fuzzer to find: parts of one's own that break claims, and changes of privfl."""
