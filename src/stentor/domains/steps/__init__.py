"""The journal of a task: what each of its steps led to, so that the next attempt continues where the last one ended."""
