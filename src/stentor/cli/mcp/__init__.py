"""The MCP server of `stentor mcp`, and the configuration of its clients."""
