"""What is recorded: the records, the journal they are written to, and how they are read back."""
