"""Adapters for frameworks of agents. Each module needs its framework, which the extra of the same name installs."""
