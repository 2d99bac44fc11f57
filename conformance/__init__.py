"""What an nsqd, nsqlookupd or nsqadmin does, asked of any of them on real sockets: see README.md.

It imports nothing of nsq_compat. A wheel has it as ``nsq_conformance``, with the command ``nsq-conformance``.
"""
