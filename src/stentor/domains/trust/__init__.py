"""Trust: a score in [0,1] per entity, and the operations that it permits. Knows entity ids, not agents."""
