"""Agents on a Ray cluster, with a stand-in for the package `ray`; tests/examples/test_ray.py has a real one."""
