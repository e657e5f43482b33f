"""Task notes: every task as a note in the vault, and notes of people that become tasks."""
