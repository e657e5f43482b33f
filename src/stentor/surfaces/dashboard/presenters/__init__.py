"""Pure functions that turn records into what the JSON API and the pages show."""
