"""Monitoring: is the service well, and what does it do: health components and metrics."""
