#!/usr/bin/env bash
# Watches the alarms of TO for WATCH_MINUTES. It fails with the one that is on.
set -euo pipefail
.venv/bin/steelyard release watch --env "$TO" --minutes "$WATCH_MINUTES"
