"""The variables of this machine that a build gets."""

from __future__ import annotations

from collections.abc import Mapping

_HANDED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TZ", "USER", "XDG_CACHE_HOME", "STEELYARD_CACHE")
_HANDED_ON_PREFIXES = ("CURL_", "PIP_", "REQUESTS_", "SSL_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the local cloud's start that builds get: the machine's ways out, no settings."""
    found = {
        name: value
        for name, value in environment.items()
        if name in _HANDED_ON or name.startswith(_HANDED_ON_PREFIXES) or name.lower() in _PROXIES
    }
    folders = [*found.get("PATH", "").split(":"), *_SYSTEM_FOLDERS]
    return {**found, "PATH": ":".join(dict.fromkeys(folder for folder in folders if folder))}
