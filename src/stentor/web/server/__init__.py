"""The HTTP server of every surface: `http_server` binds ports and runs uvicorn, `tls_acceptor` accepts TLS connections.

`protocol` and `connections` limit the size and time of requests and the number of connections. gRPC has its own server
and limits.
"""
