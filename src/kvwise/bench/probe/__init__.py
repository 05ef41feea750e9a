"""What this host can do, measured within a time. It decides nothing; `kvwise plan` reads it."""
