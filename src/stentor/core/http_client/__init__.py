"""Outbound HTTP: pooled connections, guarded against SSRF. Start at `outbound`."""
