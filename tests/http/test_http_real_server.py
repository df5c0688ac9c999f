"""The whole server with the embedded model, as a process of its own."""

from server_suite import *  # noqa: F403 - the tests; the fixture ``server`` is everybody's
