"""The environment files: their schema, their checks, and where they are found."""
