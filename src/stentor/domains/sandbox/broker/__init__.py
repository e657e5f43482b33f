"""The tool broker: what a caged agent may do outside of its cage, asked for over one socket per run."""
