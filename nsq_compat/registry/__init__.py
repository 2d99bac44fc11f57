"""nsqlookupd's database, ``registration_db``: which nsqd has which topics and channels.

May import ``protocol``. Uses no network and no clock.
"""
