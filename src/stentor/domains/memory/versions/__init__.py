"""Versions of notes: what is stored of each, and versions of edits that were made on disk."""
