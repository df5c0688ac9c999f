#!/usr/bin/env bash
# Builds the release once, and deploys it to TO. RELEASES: a folder for its manifest. WHY: the reason that is recorded.
set -euo pipefail
.venv/bin/steelyard release build --env "$TO" --to "$RELEASES"
.venv/bin/steelyard up --env "$TO" --release "$(echo "$RELEASES"/*.json)" --why "$WHY"
