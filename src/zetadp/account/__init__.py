"""What was recorded of a cohort: ledgers, their total, its limit, statements and their verification."""
