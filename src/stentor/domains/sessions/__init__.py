"""Sessions: conversations, and small states of programs, that outlive a task."""
