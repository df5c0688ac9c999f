"""Access to AWS with the caller's credentials; also to the local cloud."""
