"""Stentor: a self-hosted control plane for software agents."""

__version__ = "0.2.0"
