"""``steelyard bench tune``: the arithmetic on noisy clocks, the search, what it leaves behind, and the command."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from itertools import pairwise

import pytest

from steelyard import cli
from steelyard.benchmarking import profile
from steelyard.benchmarking.comparison import FIRST_LOOK, Estimate, MeasureError, compare, interval, ratio, survivors
from steelyard.benchmarking.tuning import (
    BATCH_TOKENS,
    CONFIRMATION,
    Findings,
    default_settings,
    stages,
    thread_counts,
    tune,
)
from steelyard.benchmarking.workload import EngineSettings, Workbench
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.engine.cores import Cores
from steelyard_runtime.settings import Settings, load_settings
from tiny_models import write as write_tiny

EIGHT = Cores(logical=16, physical=8, fast=8, quota=math.inf)
ONE_WORKLOAD = {"decision": 1.0}


class NoisyMachine:
    """Seconds with a drift, jitter, and bursts of other work; what is faster stays faster."""

    def __init__(self, true_seconds, *, seed=0):
        self.true_seconds = true_seconds
        self.random = random.Random(seed)
        self.calls = []

    def __call__(self, candidate):
        self.calls.append(candidate)
        drift = 1 + 0.5 * math.sin(len(self.calls) / 40)
        burst = 3.0 if self.random.random() < 0.1 else 1.0
        return {"decision": self.true_seconds[candidate] * drift * burst * self.random.uniform(0.97, 1.03)}


def test_the_interval_is_that_of_the_median():
    assert interval([float(n) for n in range(FIRST_LOOK)]) == (0.0, FIRST_LOOK - 1.0)
    assert interval([1.0] * (FIRST_LOOK - 1)) == (-math.inf, math.inf)
    low, high = interval([float(n) for n in range(101)])
    assert low < 50 < high
    # Of a binomial of 101 tosses, 38 to 63 is the usual 99 % range.
    assert (low, high) == (37.0, 63.0)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = random.Random(5)
    covered = 0
    for _ in range(2000):
        low, high = interval([rng.expovariate(1) for _ in range(16)])
        covered += low <= math.log(2) <= high
    assert covered / 2000 > 0.98


def test_a_ratio_weighs_workloads_and_takes_the_mean_of_the_incumbents_around():
    before, after = {"decision": 1.0, "chat": 2.0}, {"decision": 3.0, "chat": 2.0}
    challenger = {"decision": 1.0, "chat": 4.0}
    assert ratio(challenger, before, after, {"decision": 1.0}) == pytest.approx(0.5)
    assert ratio(challenger, before, after, {"decision": 1.0, "chat": 1.0}) == pytest.approx(1.0)
    assert ratio(challenger, before, after, {"decision": 3.0, "chat": 1.0}) == pytest.approx(0.5**0.5)


def test_the_faster_one_wins_on_a_noisy_machine():
    machine = NoisyMachine({"now": 1.0, "faster": 0.85, "slower": 1.3, "same": 1.0, "worse": 1.1})
    found = compare("now", ["slower", "same", "faster", "worse"], measure=machine, weights=ONE_WORKLOAD, rounds=32)
    assert found.winner == "faster"
    assert found.estimates["slower"].rounds < found.estimates["faster"].rounds, "losers leave early"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_equally_fast_is_not_taken(seed):
    machine = NoisyMachine({"now": 1.0, "same": 1.0, "too": 1.0}, seed=seed)
    found = compare("now", ["same", "too"], measure=machine, weights=ONE_WORKLOAD, rounds=32)
    assert found.winner == "now"


def test_measurements_are_interleaved_and_enclosed_by_the_incumbent():
    machine = NoisyMachine({"now": 1.0, "a": 1.0, "b": 1.0})
    compare("now", ["a", "b"], measure=machine, weights=ONE_WORKLOAD, rounds=4)
    assert machine.calls[:8] == ["now", "b", "a", "now", "now", "a", "b", "now"]


def test_time_that_is_up_ends_it_undecided():
    machine = NoisyMachine({"now": 1.0, "faster": 0.5})
    found = compare("now", ["faster"], measure=machine, weights=ONE_WORKLOAD, rounds=32, out_of_time=lambda: True)
    assert (found.winner, found.estimates["faster"].rounds) == ("now", 1)


def test_a_candidate_that_fails_leaves_with_its_reason_and_never_wins():
    rounds = []

    def measure(candidate):
        if candidate == "broken":
            rounds.append(candidate)
            if len(rounds) == FIRST_LOOK:
                raise MeasureError("out of memory")
        return {"decision": {"now": 1.0, "broken": 0.5, "faster": 0.9}[candidate]}

    found = compare("now", ["broken", "faster"], measure=measure, weights=ONE_WORKLOAD, rounds=32)
    assert (found.winner, found.failures) == ("faster", {"broken": "out of memory"})


def test_when_no_challenger_can_be_measured_the_incumbent_stays():
    found = compare("now", ["broken"], measure=_always_failing("broken"), weights=ONE_WORKLOAD, rounds=32)
    assert (found.winner, found.failures) == ("now", {"broken": "refused"})


def _always_failing(name):
    def measure(candidate):
        if candidate == name:
            raise MeasureError("refused")
        return {"decision": 1.0}

    return measure


def test_the_worse_half_leaves_at_halving_rounds_only():
    undecided = {n: Estimate(ratio=1 + n / 10, low=-math.inf, high=math.inf, rounds=4) for n in range(5)}
    assert survivors(range(5), undecided, 3) == [0, 1, 2, 3, 4]
    assert survivors(range(5), undecided, 4) == [0, 1, 2]


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cores",
    [
        Cores(logical=1, physical=1, fast=1, quota=math.inf),
        Cores(logical=4, physical=2, fast=2, quota=math.inf),
        Cores(logical=16, physical=8, fast=8, quota=2.5),
        Cores(logical=20, physical=14, fast=6, quota=math.inf),
        Cores(logical=64, physical=32, fast=32, quota=0.5),
        EIGHT,
    ],
)
def test_no_candidate_oversubscribes_the_machine(cores):
    counts = thread_counts(cores)
    assert all(1 <= count <= max(1, min(cores.physical, cores.quota)) for count in counts)
    assert cores.threads in counts
    assert all(more > fewer for more, fewer in pairwise(counts))


def test_efficiency_cores_are_tried_too():
    assert thread_counts(Cores(logical=20, physical=14, fast=6, quota=math.inf))[0] == 14


class ModelledBench:
    """A machine where 4 threads, batches of 256 and no flash attention are fastest, without any noise."""

    def __init__(self):
        self.asked = []

    def measure(self, settings, workloads):
        self.asked.append(settings)
        slow = 1 + abs(settings.threads - 4) / 4
        slow *= 1.0 if settings.flash_attention == "off" else 1.1
        batch = {128: 1.3, 256: 1.0, 512: 1.2, 1024: 1.25}[settings.batch_tokens]
        return {name: slow * (batch if name == "long" else 1.0) for name in workloads}


def searched(bench, *, interrupted_after=None, findings=None, cores=EIGHT, out_of_time=lambda: False):
    default = default_settings(cores, trained_context=8192)
    findings = findings or Findings(default=default, best=default)
    plan = stages(cores, trained_context=8192, q8_cache=False)
    for number, _ in enumerate(tune(bench, findings, plan, out_of_time=out_of_time), 1):
        if number == interrupted_after:
            break
    return findings


def test_the_search_finds_the_best_of_each_setting_and_confirms_it():
    found = searched(ModelledBench())
    assert (found.best.threads, found.best.batch_tokens, found.best.flash_attention) == (4, 256, "off")
    assert found.gain is not None
    assert found.gain.better
    assert set(found.comparisons) == {"threads", "flash_attention", "batch_tokens", CONFIRMATION}


def test_without_a_confirmation_there_is_no_gain():
    found = searched(ModelledBench(), interrupted_after=1)
    assert found.best.threads == 4
    assert found.gain is None
    with pytest.raises(ValueError, match="no profile"):
        profile.profile(found, notes={})


def test_an_interrupted_search_goes_on_where_it_stopped():
    whole, first = searched(ModelledBench()), searched(ModelledBench(), interrupted_after=2)
    text = profile.to_json(first, key={"model": "m"}, facts={})
    kept = profile.from_json(text, key={"model": "m"}, default=first.default)
    assert kept.comparisons == first.comparisons
    bench = ModelledBench()
    assert searched(bench, findings=kept).best == whole.best
    assert all(settings.threads in (4, kept.default.threads) for settings in bench.asked), "threads are not tried again"


@pytest.mark.parametrize("key", [{"model": "another"}, {}])
def test_figures_of_another_model_or_machine_are_not_used(key):
    first = searched(ModelledBench(), interrupted_after=2)
    text = profile.to_json(first, key={"model": "m"}, facts={})
    assert profile.from_json(text, key=key, default=first.default).comparisons == {}


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"format": 99}'])
def test_a_broken_report_starts_afresh(text):
    default = default_settings(EIGHT, trained_context=8192)
    assert profile.from_json(text, key={}, default=default) == Findings(default=default, best=default)


def test_time_that_is_up_still_confirms_what_was_found():
    times = iter([False] * 12 + [True] * 1000)
    found = searched(ModelledBench(), out_of_time=lambda: next(times))
    assert found.best != found.default
    assert found.gain is not None


def test_small_contexts_get_no_batch_that_they_cannot_hold():
    plan = dict(stages(EIGHT, trained_context=512, q8_cache=True))
    now = default_settings(EIGHT, trained_context=512)
    assert {settings.batch_tokens for settings in plan["batch_tokens"](now).challengers} == {128, 256}
    assert [settings.cache_type for settings in plan["cache_type"](now).challengers] == ["q8_0"]
    assert max(BATCH_TOKENS) > 512


# --- the profile ------------------------------------------------------------------------------------------------------


def test_the_profile_is_a_settings_file_with_nothing_but_what_changed(tmp_path):
    found = searched(ModelledBench())
    path = tmp_path / "profile.toml"
    path.write_text(profile.profile(found, notes={"model": "a\nname", "machine": "m"}))
    assert tomllib.loads(path.read_text()) == {"threads": 4, "batch_tokens": 256, "flash_attention": "off"}
    settings = load_settings(config=path)
    assert (settings.threads, settings.batch_tokens, settings.flash_attention) == (4, 256, "off")
    assert "# model: a name\n" in path.read_text()


def test_every_varied_setting_is_one_of_the_server():
    default = default_settings(EIGHT, trained_context=8192)
    assert default.threads == EIGHT.threads
    assert default.batch_tokens == Settings.model_fields["batch_tokens"].default
    assert {"threads", "batch_tokens", "flash_attention"} <= set(Settings.model_fields)


# --- the real thing, on a tiny model ----------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    return write_tiny("llama", tmp_path / "tiny.gguf")


def settings(**changed):
    return EngineSettings(**({"threads": 1, "batch_tokens": 512, "flash_attention": "auto"} | changed))


def test_the_workbench_measures_compares_and_says_why_not(tiny):
    with Workbench(tiny) as bench:
        assert bench.facts().memory == "dense"
        taken = bench.measure(settings(), ["decision", "chat", "long"])
        assert set(taken) == {"decision", "chat", "long"}
        assert all(seconds > 0 for seconds in taken.values())
        assert bench.difference(settings(), settings()).largest == 0.0
        moved = bench.difference(settings(flash_attention="off", batch_tokens=128), settings())
        assert 0 < moved.largest < 1
        with pytest.raises(MeasureError):
            bench.measure(settings(threads=1, cache_type="nonsense"), ["decision"])
        assert bench.measure(settings(), ["decision"])["decision"] > 0, "the child goes on after a refusal"


def test_a_child_that_dies_is_told_and_started_again(tiny):
    with Workbench(tiny) as bench:
        bench.facts()
        assert bench._process is not None
        os.kill(bench._process.pid, signal.SIGKILL)
        with pytest.raises(MeasureError, match="status -9"):
            bench.facts()
        assert bench.facts().memory == "dense"


def test_a_file_that_is_no_model_is_refused(tmp_path, cache, capsys):
    path = tmp_path / "not.gguf"
    path.write_bytes(b"GGUF")
    assert cli.run(["bench", "tune", "--model", str(path)]) == ExitCode.MODEL
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_searches_and_keeps_its_figures(tiny, cache, tmp_path, capsys):
    out = tmp_path / "profile.toml"
    assert cli.run(["bench", "tune", "--model", str(tiny), "--minutes", "0.1", "--out", str(out)]) == ExitCode.OK
    (kept,) = (cache / "benchmarks").glob("tune-*.json")
    report = json.loads(kept.read_text())
    assert report["comparisons"], "at least one stage was finished"
    assert report["proven"] or not out.is_file()
    if out.is_file():
        load_settings(config=out)
        assert report["facts"]["exact"]
    else:
        assert "no profile" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_found_and_writes_no_profile(tiny, tmp_path):
    out, cache = tmp_path / "profile.toml", tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-m", "steelyard", "bench", "tune", "--model", tiny, "--out", out],
        env=os.environ | {"STEELYARD_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )
    # Wait for the first finished stage, which is what must survive.
    while not list(cache.glob("benchmarks/tune-*.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == ExitCode.OK:
        pytest.fail("it was over before it could be interrupted")
    assert process.returncode == ExitCode.INTERRUPTED
    assert "run it again to continue" in err
    assert not out.exists()
    (kept,) = cache.glob("benchmarks/tune-*.json")
    assert json.loads(kept.read_text())["comparisons"]


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tiny, cache, tmp_path, capsys):
    code = cli.run(["bench", "tune", "--model", str(tiny), "--out", str(tmp_path / "nowhere" / "p.toml")])
    assert code == ExitCode.USAGE
    assert "does not exist" in capsys.readouterr().err
