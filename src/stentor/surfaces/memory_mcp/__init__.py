"""The governed memory server: four tools for agents, over the Model Context Protocol."""
