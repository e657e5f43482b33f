"""Commands about the memory: search, the index, versions, invalidation, and access for MCP clients."""
