"""The program ``nsqadmin``: pages and an API to inspect and administer a cluster.

    main     command line and exit code; patches blocking calls with gevent's before other imports
    options  flags, defaults, config keys, validation
    daemon   the parts, and the order in which they start and stop; samples; notifications; read this first

May import everything except the other programs.
"""
