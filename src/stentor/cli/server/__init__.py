"""What stands between a client's connection and the application, on every HTTP surface: limits on the size and the
time of a request's head and body, and on the number of connections. gRPC has its own server and limits.
"""
