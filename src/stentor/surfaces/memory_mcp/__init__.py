"""The memory MCP server: the four tools of the governed memory over the Model Context Protocol."""
