"""Trust: a score in [0,1] per entity, and what a score permits. Knows entity ids, not agents."""
