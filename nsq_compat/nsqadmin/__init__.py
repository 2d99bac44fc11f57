"""The program ``nsqadmin``: pages and an API to see and steer a cluster.

main            command line in, exit code out; replaces blocking calls by gevent's before anything else is imported
options         flags, defaults, config keys; what is refused at the start
daemon          the order of start and stop, and the daemon as its pages see it
sampler         looks at the cluster now and then and feeds its history
notifications   tells an endpoint what was done
"""
