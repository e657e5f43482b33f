"""Figures with their method: `python -m bench`. Nothing here asserts a speed; it measures and compares."""
