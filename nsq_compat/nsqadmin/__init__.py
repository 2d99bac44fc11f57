"""The program ``nsqadmin``: pages and an API to inspect and administer a cluster.

    main            command line and exit code; patches blocking calls with gevent's before other imports
    options         flags, defaults, config keys, validation
    daemon          the parts, and the order in which they start and stop; read this first
    sampler         takes snapshots of the cluster in intervals, and adds them to the history
    notifications   sends actions to --notification-http-endpoint

May import everything except the other programs.
"""
