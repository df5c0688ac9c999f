"""The limits of one template and of one render. ``docs/reference/chat-templates.md`` is generated from this file."""

from __future__ import annotations

MAX_TEMPLATE_CHARACTERS = 256 << 10
"""Characters of a template's source."""
COMPILE_CPU_S = 2.0
"""Processor seconds to compile or review a template."""
RENDER_CPU_S = 1.0
"""Processor seconds to render a conversation."""
MEMORY_MIB = 512
"""MiB of address space of a child process, Python included; on macOS there is no such limit."""
MAX_OUTPUT_CHARACTERS = 16 << 20
"""Characters that one render may write."""
CHILDREN = 2
"""Child processes, and so renders at the same time."""
MAX_WAITING = 256
"""Renders that may wait; one more is answered with 503."""
PATIENCE_S = 30.0
"""Seconds of wall time after which a child is given up, whatever it waits for."""
