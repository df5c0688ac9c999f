"""HTTP: routes, bodies, one place that turns a problem into a response, logs, metrics, the process.

A new route is one line in ``app.py`` and a function in the room of ``routes/`` that it belongs to; its description for
``/openapi.json`` is one entry in ``openapi.py``.
"""
