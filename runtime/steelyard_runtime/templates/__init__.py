"""Chat templates, rendered in a child process; of each character it is known whether a caller wrote it."""
