"""The rules of S3 for the names of general purpose buckets (User Guide, "Bucket naming rules")."""

from __future__ import annotations

import re

RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3", "-an")


def bucket_name_fault(name: str) -> str | None:
    """Return why no bucket can be called ``name``, with what to do; None when one can.

    Names with dots exist, but are refused too: their TLS certificates do not match, and ours is reached over TLS only.
    """
    if not 3 <= len(name) <= 63:
        return f"it has {len(name)} characters; use 3 to 63"
    if "." in name:
        return "it has a dot, which breaks TLS to the bucket; use hyphens"
    if not re.fullmatch(r"[a-z0-9-]+", name):
        return "use lower-case letters, digits and hyphens only"
    if name.startswith("-") or name.endswith("-"):
        return "begin and end it with a letter or a digit"
    for prefix in RESERVED_PREFIXES:
        if name.startswith(prefix):
            return f"S3 keeps names that begin with {prefix!r} for itself; choose another"
    for suffix in RESERVED_SUFFIXES:
        if name.endswith(suffix):
            return f"S3 keeps names that end with {suffix!r} for itself; choose another"
    return None
