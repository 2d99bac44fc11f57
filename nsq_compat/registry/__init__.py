"""The heart of nsqlookupd: which nsqd has which topics and channels. No network, no clock.

    registration_db   all of it, and the questions asked of it; start here
    registration      what it is made of: producers, and what they have registered

May import: ``protocol``, and nothing that does I/O; import-linter sees to it.
"""
