"""Runs one endpoint's command and makes sure that it never outlives the local cloud.

Started by path, as ``python -I -S guard.py [--afterwards JSON] COMMAND...``, with a pipe as standard input whose other
end the emulator holds: when the emulator dies, however it dies, the pipe closes and the command's whole process group
is killed. Should the guard itself be killed, Linux kills the command. SIGTERM is passed on, and followed by SIGKILL
after the 30 seconds that SageMaker gives a container. The exit status is the command's.

``--afterwards`` names another command, as a list of words in JSON, that runs once the first has ended or was killed: a
container is no child of the command that starts it, and is removed by this one.

Imports nothing but the standard library: it starts with every endpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

GRACE_S = 30.0
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Run a command until it ends, or is stopped."""
    afterwards: list[str] = []
    if words[0] == "--afterwards":
        afterwards, words = json.loads(words[1]), words[2:]
    return run(words, afterwards)


def run(command: list[str], afterwards: list[str]) -> int:
    """Run ``command`` until it ends, or is stopped, and then ``afterwards`` unless it is empty."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_the_guard() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        child = subprocess.Popen(  # noqa: S603 - the endpoint's command is what this program is for
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_the_guard,
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror or error}\n")
        return 127

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def stop(_number: int, _frame: FrameType | None) -> None:
        child.terminate()
        killer = threading.Timer(GRACE_S, kill)
        killer.daemon = True
        killer.start()

    def watch_the_emulator() -> None:
        # Not through sys.stdin: a thread that holds its lock aborts the interpreter's shutdown.
        while os.read(0, 1024):
            pass
        kill()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=watch_the_emulator, daemon=True).start()
    status = child.wait()
    kill()
    if afterwards:
        subprocess.run(afterwards, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
