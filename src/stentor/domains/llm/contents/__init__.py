"""The prompts and answers of model calls that are kept: redacted, stored beside the run log, and deleted again."""
