"""The note store: a server with nine tools over a vault plugin or vault server, for agents that have its key."""
