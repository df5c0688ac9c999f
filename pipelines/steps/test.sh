#!/usr/bin/env bash
# The checks of this checkout.
set -euo pipefail
make check
