"""The model `auto`: chooses the model for each chat request by track record: failures, grades, cost and duration."""
