"""Many states from a file, asked one after the other, and a row of output for each answer."""
