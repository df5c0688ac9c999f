#!/usr/bin/env bash
# Promotes what FROM runs to TO, if its evaluation in the folder EVIDENCE keeps TO's gates. The profile "from" is of FROM's
# account. WHY: the reason that is recorded.
set -euo pipefail
.venv/bin/steelyard release promote --from "$FROM" --to "$TO" --from-profile from --yes --evidence "$EVIDENCE/$FROM.json" --why "$WHY"
