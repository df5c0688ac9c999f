"""Memory that a large request took is not kept, whatever small blocks were made beside it."""

from __future__ import annotations

import os
import subprocess
import sys

# A large block is freed first: by that glibc learns to put the next ones into its heap. Each is followed by a small one
# that stays. What is printed is the memory in MiB that the process keeps after the large ones are gone.
KEEPS = """
import sys
from steelyard_runtime.allocator import return_large_blocks
from steelyard_runtime.engine.memory import used
if sys.argv[1] == "return":
    assert return_large_blocks()
def own():
    return used().anonymous / 2**20
first = bytes([1]) * (16 << 20)
del first
before = own()
large, small = [], []
for _ in range(64):
    large.append(bytes([1]) * (1 << 20))
    small.append(bytes([1]) * 2000)
assert own() - before > 60
large.clear()
print(own() - before)
"""


def kept_mib(how: str, **variables: str) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", KEEPS, how],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def test_large_blocks_are_returned() -> None:
    assert kept_mib("return") < 4
    # The same without it, so that the test means something.
    assert kept_mib("keep") > 50


def test_a_variable_of_glibcs_that_is_set_stays_in_force() -> None:
    assert kept_mib("return", MALLOC_MMAP_THRESHOLD_=str(8 << 20)) > 50
