"""The dashboard's HTML pages, by area. They call the gateway with the key of the signed-in user."""
