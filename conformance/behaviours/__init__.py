"""Behaviours of nsqd and nsqlookupd, one per test, in terms of the protocol."""
