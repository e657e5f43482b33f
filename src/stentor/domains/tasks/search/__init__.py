"""Full-text search over what tasks ask and answer: title, type, input, result and error."""
