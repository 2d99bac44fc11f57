"""Tests of the behaviour of any nsqd, nsqlookupd or nsqadmin on real sockets; see README.md.

Imports nothing from nsq_compat. A wheel contains this package as ``nsq_conformance``, with the command
``nsq-conformance``.
"""
