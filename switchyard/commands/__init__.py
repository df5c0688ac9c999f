"""One module per subcommand of ``switchyard``."""
