"""SQL of queued and claimed tasks: their order, leases, limits by key, and repair."""
