"""Running the servers of a process: `service_runner` for the whole service, `mcp_server` for `stentor mcp`.

`http_server` binds ports and runs uvicorn; `protocol` and `connections` limit the size and time of requests and the
number of connections on every HTTP surface. gRPC has its own server and limits.
"""
