"""nsqlookupd's database.

    registration_db      which nsqd has which topics and channels
    registration_policy  which connections may register an nsqd, under which broadcast addresses

May import ``protocol``. Uses no network and no clock.
"""
