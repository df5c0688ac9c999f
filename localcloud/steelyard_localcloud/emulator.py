"""The emulator's process: ministack with our services, over TLS, with IAM enforced, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hypercorn.asyncio import serve
from hypercorn.config import Config

from steelyard_localcloud.certificates import Certificates, make_certificates
from steelyard_localcloud.codebuild.environment import inherited
from steelyard_localcloud.containers.storage import write_storage
from steelyard_localcloud.details import FILE_NAME, CloudDetails, own_folder
from steelyard_localcloud.options import Options
from steelyard_localcloud.ports import HOST, free_port
from steelyard_localcloud.registry.tools import write_registries
from steelyard_localcloud.sagemaker import podman

_KEEP_ALIVE_S = 75.0

log = logging.getLogger("steelyard.localcloud")


def run(options: Options) -> int:
    """Serve until SIGTERM or Ctrl-C, then stop every endpoint and end the process with status 0.

    Returns:
        The exit status, should the server end by itself.
    """
    home = options.home
    own_folder(home)
    for name in ("endpoints", "builds", "logs", "tmp"):
        (home / name).mkdir(parents=True, exist_ok=True)
    for name in ("endpoints", "builds"):
        shutil.rmtree(home / name)
    certificates = make_certificates(home / "tls")
    cloud = _details(options, certificates)
    write_storage(cloud.containers)
    write_registries(
        cloud.registries_file,
        address=cloud.registry,
        accounts=[cloud.account, *options.published_accounts],
        region=cloud.region,
    )
    podman.remove_leftovers(cloud)
    # Before ministack's settings, which are not the builds' business.
    environment = inherited(os.environ)
    _configure_ministack(cloud, certificates, home)
    asyncio.run(_serve(cloud, certificates, options, environment))
    return 0


def _details(options: Options, certificates: Certificates) -> CloudDetails:
    return CloudDetails(
        url=f"https://{HOST}:{options.port or free_port()}",
        region=options.region,
        account=options.account,
        access_key_id=f"AKIA{secrets.token_hex(8).upper()}",
        secret_access_key=secrets.token_urlsafe(30),
        ca_bundle=str(certificates.authority),
        home=str(options.home),
        pid=os.getpid(),
        registry=f"{HOST}:{free_port()}",
    )


def _configure_ministack(cloud: CloudDetails, certificates: Certificates, home: Path) -> None:
    """Ministack's settings are environment variables."""
    if "ministack" in sys.modules:
        raise RuntimeError("ministack was imported before its settings were made, so it would not enforce IAM")
    for name in [name for name in os.environ if name.startswith(("AWS_", "MINISTACK_"))]:
        del os.environ[name]
    os.environ.update(
        {
            "AUTH": "true",
            "BIND_HOST": HOST,
            "DOCKER_HOST": f"unix://{home / 'no-docker.sock'}",
            "GATEWAY_PORT": cloud.url.rpartition(":")[2],
            "IOT_MTLS_ENABLED": "0",
            "LAMBDA_EXECUTOR": "local",
            "MINISTACK_ACCOUNT_ID": cloud.account,
            "MINISTACK_HOST": "localhost",
            "MINISTACK_REGION": cloud.region,
            "MINISTACK_SSL_CERT": str(certificates.chain),
            "MINISTACK_SSL_KEY": str(certificates.key),
            "NO_PROXY": "*",
            "PERSIST_STATE": "0",
            "SFTP_ENABLED": "0",
            "TMPDIR": str(home / "tmp"),
            "USE_SSL": "1",
        }
    )


async def _serve(
    cloud: CloudDetails, certificates: Certificates, options: Options, environment: Mapping[str, str]
) -> None:
    # Only now: ministack reads its settings while it is imported.
    import ministack.app

    from steelyard_localcloud.administrator import make_administrator
    from steelyard_localcloud.gate import Gate
    from steelyard_localcloud.install import install, start_evaluating_alarms

    make_administrator(cloud)
    installed = install(cloud=cloud, options=options, inherited=environment)
    start_evaluating_alarms()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    # A trigger that never comes: left without one, hypercorn takes the signals.
    serving = asyncio.create_task(
        serve(
            cast(Any, Gate(ministack.app.app, cloud)),
            _config(cloud, certificates),
            shutdown_trigger=asyncio.Event().wait,
        )
    )
    registry = asyncio.create_task(
        serve(cast(Any, installed.registry), _plain(cloud.registry), shutdown_trigger=asyncio.Event().wait)
    )
    cloud.write()
    log.info("the local cloud listens at %s; %s", cloud.url, Path(cloud.home) / FILE_NAME)
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait((serving, registry, stop), return_when=asyncio.FIRST_COMPLETED)
    (Path(cloud.home) / FILE_NAME).unlink(missing_ok=True)
    # Requests in flight are answered meanwhile.
    await asyncio.to_thread(installed.close)
    for server in (serving, registry):
        if server.done():
            server.result()
            return
    # asyncio would wait half a minute for the clients to close their idle connections.
    logging.shutdown()
    os._exit(0)


def _config(cloud: CloudDetails, certificates: Certificates) -> Config:
    config = _plain(cloud.url.removeprefix("https://"))
    config.certfile, config.keyfile = str(certificates.chain), str(certificates.key)
    config.alpn_protocols = ["http/1.1"]
    return config


def _plain(address: str) -> Config:
    config = Config()
    config.bind = [address]
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.loglevel = "WARNING"
    return config


def main(text: str) -> int:
    """Run with the options that ``Options.to_json`` gave, and end with the process that started this one if asked to.

    With ``STEELYARD_LOCALCLOUD_LIFELINE`` set, the end of standard input ends the local cloud.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("botocore", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if os.environ.pop("STEELYARD_LOCALCLOUD_LIFELINE", None):
        threading.Thread(target=_end_with_the_starter, daemon=True).start()
    return run(Options.from_json(text))


def _end_with_the_starter() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
