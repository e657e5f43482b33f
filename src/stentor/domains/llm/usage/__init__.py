"""What models were used, by day and by week."""
