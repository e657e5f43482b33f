"""Pure functions that turn records into JSON for the API and into rows for the templates."""
