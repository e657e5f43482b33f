"""Who calls: keys, principals, permissions."""
