"""Programs that run inside the builds; with what they import, they are the builds' source."""
