"""The operator's command line and client of Steelyard."""
