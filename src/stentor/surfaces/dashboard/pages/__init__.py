"""The pages of the dashboard, by area: a client of the gateway that renders HTML, with the key of whoever signed in."""
