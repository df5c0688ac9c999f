"""Programs that run inside the builds. With the rooms they import, they are the source of the builds."""
