"""Between the contracts and the engine: what one request needs of the engine, and what becomes of its events."""
