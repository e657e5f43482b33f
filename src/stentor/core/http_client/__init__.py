"""Outbound HTTP: pooled connections, guarded against SSRF."""
