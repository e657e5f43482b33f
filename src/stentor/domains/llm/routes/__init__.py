"""What the HTTP routes of model calls share: reading requests, routing chats, streaming answers."""
