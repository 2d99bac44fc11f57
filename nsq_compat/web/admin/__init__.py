"""nsqadmin's pages and JSON API: a Flask application.

    app         blueprints, errors, headers, compression, static files; the handler for our HTTP server; read this first
    access      visitors, roles, login, protection against requests of other sites; the program's interface
    users       the user file: names, roles, passwords; limits of attempts
    request_queue  how many requests of a visitor are answered at the same time
    sessions    logins of browsers, what ends them, and the file in which this outlives nsqadmin
    oidc        login at a provider, by OpenID Connect

    cluster     /, /counter, /lookup, /nodes
    topics      /topics, and messages of topics and channels
    messages    finish, requeue and dead-letter messages; redrives
    policies    /policies: what applies where, editing, and putting into force on nodes
    tables      rows, searching, sorting, paging; charts
    formatting  numbers and durations as text, series as SVG coordinates
    graphite    graphs drawn by Graphite

    api         NSQ's JSON API
    documents   /docs: Markdown as pages
    operations  /config, /ping, /metrics, /livez, /readyz

    queries     the data of a page: a snapshot of the cluster, or queries with their warnings
    actions     everything that changes the cluster

A view queries, a template displays, neither computes. Templates lie in the repository's `templates/`: a folder for each
blueprint, a file for each endpoint.
"""
