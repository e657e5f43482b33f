"""The note-store server: nine tools over a vault plugin's REST API. Source: second contract, "Note-store server"."""
