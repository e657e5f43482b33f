"""Monitoring: health checks of the components, and the metrics endpoint."""
