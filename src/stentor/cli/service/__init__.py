"""The service in this process: running it, using it for one command, or only opening its database."""
