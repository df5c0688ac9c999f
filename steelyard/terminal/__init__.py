"""Output for people: results on standard output, progress and notes on standard error."""
