"""The ground floor: exit codes, strict files, the wording of faults. Every room above the runtime may import it."""
