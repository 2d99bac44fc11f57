"""nsqlookupd's database: which nsqd has which topics and channels.

    registration_db   the database: changes and queries
    registration      its records: producers, and the topics and channels they registered

May import ``protocol``. Uses no network and no clock.

Read ``registration_db`` first.
"""
