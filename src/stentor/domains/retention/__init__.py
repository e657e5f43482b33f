"""Keeps the database small: tasks that ended long ago leave it for Parquet files, and the run log stays provable."""
