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
from pathlib import Path

from switchyard_localcloud.certificates import Certificates, make_certificates
from switchyard_localcloud.details import FILE_NAME, CloudDetails
from switchyard_localcloud.options import Options
from switchyard_localcloud.sagemaker.process import HOST, free_port

_KEEP_ALIVE_S = 75.0

log = logging.getLogger("switchyard.localcloud")


def run(options: Options) -> int:
    """Serve until SIGTERM or Ctrl-C, then stop every endpoint.

    Returns:
        The process's exit status.
    """
    home = options.home
    for name in ("endpoints", "logs", "tmp"):
        (home / name).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(home / "endpoints")
    certificates = make_certificates(home / "tls")
    cloud = _details(options, certificates)
    _configure_ministack(cloud, certificates, home)
    # Only now: ministack reads its settings while it is imported.
    from switchyard_localcloud.install import install, start_evaluating_alarms

    installed = install(cloud=cloud, options=options)
    stop_alarms = threading.Event()
    start_evaluating_alarms(stop_alarms)
    cloud.write()
    log.info("the local cloud listens at %s; %s", cloud.url, home / FILE_NAME)
    try:
        asyncio.run(_serve(cloud, certificates))
    finally:
        stop_alarms.set()
        (home / FILE_NAME).unlink(missing_ok=True)
        installed.sagemaker.endpoints.close()
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
    )


def _configure_ministack(cloud: CloudDetails, certificates: Certificates, home: Path) -> None:
    """Ministack's settings are environment variables. The administrator's key is the one it takes for the root user."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MINISTACK_"))]:
        del os.environ[name]
    os.environ.update(
        {
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": cloud.access_key_id,
            "AWS_SECRET_ACCESS_KEY": cloud.secret_access_key,
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


async def _serve(cloud: CloudDetails, certificates: Certificates) -> None:
    import ministack.app
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [cloud.url.removeprefix("https://")]
    config.certfile, config.keyfile = str(certificates.chain), str(certificates.key)
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.graceful_timeout = 1.0
    config.loglevel = "WARNING"
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await serve(ministack.app.app, config, shutdown_trigger=stopped.wait)


def main(text: str) -> int:
    """Run with the options that ``Options.to_json`` gave, and die with whoever started this process if asked to.

    With ``SWITCHYARD_LOCALCLOUD_LIFELINE`` set, the end of standard input ends the local cloud.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    if os.environ.pop("SWITCHYARD_LOCALCLOUD_LIFELINE", None):
        threading.Thread(target=_end_with_the_starter, daemon=True).start()
    return run(Options.from_json(text))


def _end_with_the_starter() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
