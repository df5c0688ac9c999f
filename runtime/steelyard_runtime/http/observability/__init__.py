"""The operator's view: one log line per request, and the metrics."""
