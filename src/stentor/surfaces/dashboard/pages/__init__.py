"""The dashboard's HTML pages, one module per area. They call the gateway with the key of the signed-in user."""
