"""Repositories and digests, as registries write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")


def host_of(account: str, region: str) -> str:
    """The host name of an account's registry in a region."""
    return f"{account}.dkr.ecr.{region}.amazonaws.com"


@dataclass(frozen=True)
class Repository:
    """One repository of one registry."""

    account: str
    region: str
    name: str

    @property
    def arn(self) -> str:
        """As policies name it."""
        return f"arn:aws:ecr:{self.region}:{self.account}:repository/{self.name}"

    @property
    def path(self) -> str:
        """As this server's addresses name it: the registry's host, then the name."""
        return f"{host_of(self.account, self.region)}/{self.name}"


def parse_repository(path: str) -> Repository | None:
    """A repository from ``HOST/NAME``; None when it is none."""
    host, _, name = path.partition("/")
    found = _HOST.fullmatch(host)
    if found is None or len(name) > 256 or _NAME.fullmatch(name) is None:
        return None
    return Repository(found["account"], found["region"], name)
