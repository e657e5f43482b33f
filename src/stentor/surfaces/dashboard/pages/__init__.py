"""The pages of the dashboard: a client of the gateway that renders HTML, with the key of whoever signed in."""
