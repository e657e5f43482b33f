"""Wires the surfaces: one module for each, and `builder` for those that `stentor serve` starts with the gateway."""
