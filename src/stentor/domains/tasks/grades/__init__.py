"""Grades: what a finished task was worth, said afterwards by somebody who can judge it."""
