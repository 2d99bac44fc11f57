"""nsqadmin's pages and API: a Flask application.

    app            put together: blueprints, errors, headers; start here
    service        what is asked of the program that serves it
    access         who is asking and what they may do;  users  the user file;  login  its page

    home topics messages nodes counter lookup    pages, a module for each area of the site
    looking        rows, charts and snapshots that pages share;  paging  long tables;  charts  lines over time
    formatting     numbers and durations as people read them

    api            NSQ's JSON API;  api_json  its answers;  request_json  its requests
    gathering      figures with the warnings that came up on the way, for pages and API alike
    acting         everything that changes the cluster;  forms  the pages' way there
    configuration  /config;  graphite, proxy  pictures by Graphite;  assets  files;  compression
    monitoring     /metrics, /livez, /readyz;  cluster_figures  what is shown there of the cluster

A view gathers, a template shows, neither computes. Templates lie in `templates/`, a folder for each blueprint, a file
for each endpoint.
"""
