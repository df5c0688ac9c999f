#!/usr/bin/env bash
# Compares what ENDPOINT of TO decided in the last DRIFT_HOURS with as many hours before. It fails when something moved beyond
# noise. What was compared goes to the folder FOUND.
set -euo pipefail
.venv/bin/steelyard records "$ENDPOINT" --env "$TO" --hours "$((2 * DRIFT_HOURS))" --until "$DRIFT_HOURS" > "$FOUND/before.jsonl"
.venv/bin/steelyard records "$ENDPOINT" --env "$TO" --hours "$DRIFT_HOURS" > "$FOUND/now.jsonl"
if [ ! -s "$FOUND/before.jsonl" ] || [ ! -s "$FOUND/now.jsonl" ]; then
  echo "one of the two periods has no records; nothing is compared"
  exit 0
fi
.venv/bin/steelyard decision drift "$FOUND/before.jsonl" "$FOUND/now.jsonl" --fail
