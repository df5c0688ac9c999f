"""One module per subcommand of ``steelyard``."""
