"""nsqadmin's pages and JSON API: a Flask application.

    app            blueprints, errors, headers, compression, static files; read this first
    wsgi           the application as a handler of our HTTP server
    service        the interface that the program provides

    access         visitors, roles, login, protection against requests of other sites
    users          the user file: names, roles, passwords

    cluster        /, /counter, /lookup
    topics         /topics, and messages of topics and channels
    nodes          /nodes
    tables         rows, searching, sorting, paging;  charts  lines as SVG coordinates
    formatting     numbers and durations as text
    graphite       graphs drawn by Graphite

    api            NSQ's JSON API;  api_json  its JSON
    configuration  /config
    monitoring     /ping, /metrics, /livez, /readyz

    queries        queries of the cluster, with their warnings
    actions        everything that changes the cluster

A view queries, a template displays, neither computes. Templates lie in `templates/`: a folder for each blueprint, a
file for each endpoint.
"""
