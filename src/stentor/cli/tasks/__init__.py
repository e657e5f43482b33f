"""What `stentor task` does: `stream` follows a task, `view` prints it, `decisions` explains its routing."""
