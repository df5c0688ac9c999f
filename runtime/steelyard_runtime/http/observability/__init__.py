"""What an operator sees: one log line per request, and the metrics."""
