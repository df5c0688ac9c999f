#!/usr/bin/env bash
# Evaluates the live ENDPOINT of TO: DECISION on CASES. The evaluation and its report go to the folder FOUND.
set -euo pipefail
.venv/bin/steelyard decision evaluate "$DECISION" --cases "$CASES" --endpoint "$ENDPOINT" --env "$TO" --out "$FOUND/$TO.json" --html "$FOUND/$TO.html"
