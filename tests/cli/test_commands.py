"""The command as a person or a script meets it: output, messages, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from steelyard import cli
from steelyard.commands.setting_flags import flag_names
from steelyard.models import storage
from steelyard.models.catalogue import example
from steelyard.serving import server_process
from steelyard.terminal.console import bar
from steelyard_base.exit_codes import MEANING, ExitCode
from steelyard_runtime.settings import Settings

TICKET = json.loads(example("ticket.json").read_text())["decision"]


@pytest.fixture
def run(capsys):
    """Run a command in this process; returns exit code, standard output and standard error."""

    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_every_exit_code_has_a_meaning():
    assert set(MEANING) == set(ExitCode)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nonsense"], ExitCode.USAGE, "nonsense"),
        (["serve", "--nonsense"], ExitCode.USAGE, "--nonsense"),
        (["serve", "--port", "abc"], ExitCode.USAGE, "--port"),
        (["serve", "--port", "99999"], ExitCode.USAGE, "port: Input should be less than or equal to 65535"),
        (["serve", "--cache-type", "q8_0", "--flash-attention", "off"], ExitCode.USAGE, "set it to auto or on"),
        (["serve", "--config", "/nowhere.toml"], ExitCode.USAGE, "/nowhere.toml does not exist"),
        (["serve", "--model", "/nowhere.gguf"], ExitCode.MODEL, "/nowhere.gguf does not exist"),
        (["serve", "--model", "gpt-9"], ExitCode.MODEL, "no model 'gpt-9'"),
        (["serve"], ExitCode.MODEL, "steelyard model pull gemma-3-270m"),
        (["demo", "--model", "gpt-9"], ExitCode.MODEL, "no model 'gpt-9'"),
        (["model", "verify", "gemma-3-270m"], ExitCode.MODEL, "is not on this machine"),
        (["model", "pull", "gpt-9"], ExitCode.MODEL, "Known models: gemma-3-270m"),
        (["decide"], ExitCode.USAGE, "lacks state"),
        (["decide", "--state", "s", "--question", "", "--option", "a"], ExitCode.USAGE, "question is empty"),
        (["model", "show", "/nowhere.gguf"], ExitCode.MODEL, "/nowhere.gguf does not exist"),
        (["model", "show", ""], ExitCode.MODEL, "there is no model ''"),
        (["decide", "/nowhere.json"], ExitCode.USAGE, "cannot read /nowhere.json"),
        (["decide", "--state", "a", "--state-file", "b"], ExitCode.USAGE, "not both"),
        (["decide", "-", "--state-file", "-"], ExitCode.USAGE, "cannot both come from standard input"),
        (["decide", example("ticket.json"), "--url", "http://127.0.0.1:9"], ExitCode.UNREACHABLE, "steelyard serve"),
        (["chat", "hi", "--url", "nonsense"], ExitCode.USAGE, "is not an address"),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(run, cache, arguments, code, told):
    found, _, err = run(*arguments)
    assert found == code
    assert told in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_a_wrong_settings_file_names_the_setting(run, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("prot = 1\n")
    code, _, err = run("serve", "--config", path)
    assert (code, "prot" in err) == (ExitCode.USAGE, True)
    path.write_text("port = \n")
    code, _, err = run("serve", "--config", path)
    assert (code, str(path) in err) == (ExitCode.USAGE, True)


def test_serve_has_a_flag_for_every_setting(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    code, out, _ = run("serve", "--help")
    assert code == 0
    words = " ".join(out.split())
    for name, field in Settings.model_fields.items():
        assert all(flag in out for flag in flag_names(name, field)[0].split("/")), name
        assert field.description in words


def test_flags_win_over_the_environment_and_this_over_the_file(run, tmp_path, monkeypatch):
    import steelyard_runtime.http.serve as module

    model = tmp_path / "model.gguf"
    served = []
    monkeypatch.setattr(module, "serve", lambda settings: served.append(settings) or 0)
    monkeypatch.setattr("steelyard.commands.serve.model_files.resolve", lambda path: path)
    config = tmp_path / "settings.toml"
    config.write_text("queue_limit = 1\nmax_options = 2\nmax_questions = 3\nprobe = true\n")
    monkeypatch.setenv("STEELYARD_MAX_OPTIONS", "20")
    monkeypatch.setenv("STEELYARD_MAX_QUESTIONS", "30")
    flags = ["--max-questions", "33", "--no-probe", "--flash-attention", "off", "--deadline-s", "1.5"]
    code, _, err = run("serve", "--config", config, "--model", model, *flags)
    assert code == 0, err
    (settings,) = served
    assert (settings.queue_limit, settings.max_options, settings.max_questions) == (1, 20, 33)
    assert (settings.probe, settings.flash_attention, settings.deadline_s) == (False, "off", 1.5)
    assert (settings.model, settings.model_id) == (str(model), None)


def test_a_model_of_the_catalogue_is_served_under_its_name(run, cache, packaged, monkeypatch):
    import steelyard_runtime.http.serve as module
    from steelyard.models.pull import pull

    path = pull(packaged)
    served = []
    monkeypatch.setattr(module, "serve", lambda settings: served.append(settings) or 0)
    monkeypatch.setattr("steelyard.commands.serve.model_files.resolve", lambda path: path)
    monkeypatch.setattr("steelyard.models.storage.catalogue", lambda: {"tiny": packaged})
    monkeypatch.setattr("steelyard.models.storage.find", lambda _name: packaged)
    assert run("serve", "--model", "tiny")[0] == 0
    assert (served[0].model, served[0].model_id) == (str(path), "tiny")
    assert run("serve", "--model", "tiny", "--model-id", "mine")[0] == 0
    assert served[1].model_id == "mine"


def test_model_list_for_people_and_scripts(run, cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run("model", "list", "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(e["name"], e["size"], e["state"]) for e in entries] == [
        ("gemma-3-270m", 253_113_024, "absent"),
        ("lev-4b", 3_011_777_440, "absent"),
        ("qwen3.5-0.8b", 579_615_840, "absent"),
        ("qwen3.5-2b", 1_396_198_496, "absent"),
        ("qwen3.5-4b", 3_013_027_808, "absent"),
    ]
    assert all(e["licence"]["url"].startswith("https://") for e in entries)
    code, out, _ = run("model", "list")
    assert code == 0
    assert "gemma-3-270m" in out


def test_pull_and_verify(run, cache, packaged, monkeypatch):
    for place in ("steelyard.commands.model.find", "steelyard.models.storage.find"):
        monkeypatch.setattr(place, lambda _name: packaged)
    code, out, err = run("model", "pull", "tiny")
    assert (code, out.strip()) == (0, str(storage.model_path(packaged)))
    assert "https://example.org/licence" in err
    assert run("model", "verify", "tiny")[0] == 0
    storage.model_path(packaged).write_bytes(b"other")
    code, _, err = run("model", "verify", "tiny")
    assert code == ExitCode.MODEL
    assert packaged.file.sha256 in err


def test_doctor_for_scripts_fails_when_something_is_in_the_way(run, cache):
    code, out, _ = run("doctor", "--json")
    checks = {check["name"]: check for check in map(json.loads, out.splitlines())}
    assert code == ExitCode.FAILED
    assert checks["model"]["level"] == "failed"
    assert set(checks) == {"Python", "llama.cpp", "CPU", "cores", "model", "memory", "GPU", "disk"}


@pytest.mark.parametrize(("share", "shown"), [(0.0, ""), (1.0, "█" * 24), (0.5, "█" * 12), (1 / 48, "▌")])
def test_a_bar_has_the_length_of_its_share(share, shown):
    assert bar(share) == shown.ljust(24)


def test_interrupted_is_130(run, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("steelyard.commands.doctor.check_machine", interrupt)
    assert run("doctor")[0] == ExitCode.INTERRUPTED


# ---- against a real server -------------------------------------------------------------------------------------------


def test_decide_prints_a_table_and_json(run, server, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run("decide", example("ticket.json"), "--url", server.url)
    assert code == 0, err
    for option in TICKET["options"]:
        assert option["id"] in out
    assert "tokens evaluated" in out
    code, out, _ = run("decide", example("ticket.json"), "--url", server.url, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["option_ids"] == [option["id"] for option in TICKET["options"]]
    assert abs(sum(result["probabilities"]) - 1) < 1e-6
    assert result["tokens"]["prompt"] == result["tokens"]["evaluated"] + result["tokens"]["reused"]


def test_decide_from_flags_is_the_same_as_from_a_file(run, server):
    options = [x for o in TICKET["options"] for x in ("--option", f"{o['id']}={o['description']}")]
    flags = ["--state", TICKET["state"], "--question", TICKET["question"], *options]
    from_flags = json.loads(run("decide", *flags, "--url", server.url, "--json")[1])
    from_file = json.loads(run("decide", example("ticket.json"), "--url", server.url, "--json")[1])
    assert from_flags["option_logits"] == from_file["option_logits"]


def test_decide_reads_standard_input(server):
    command = [sys.executable, "-m", "steelyard", "decide", "-", "--json", "--url", server.url]
    done = subprocess.run(command, input=json.dumps([TICKET, TICKET | {"id": "2"}]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["ticket", "2"]


def test_a_refusal_is_quoted(run, server):
    flags = ["--state", "s", "--question", "q", "--option", "a", "--url", server.url]
    code, _, err = run("decide", *flags)
    assert code == ExitCode.REFUSED
    assert "options" in err


def test_chat_streams_and_prints_json(run, server):
    flags = ["--max-tokens", "6", "--temperature", "0", "--url", server.url]
    code, out, err = run("chat", "Say something.", *flags)
    assert code == 0, err
    code, whole, _ = run("chat", "Say something.", *flags, "--json")
    assert code == 0
    assert json.loads(whole)["choices"][0]["message"]["content"] == out[:-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_answers_serves_and_stops_without_leaving_anything(gemma, tmp_path, number):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = os.environ | {"STEELYARD_CACHE": str(tmp_path), "STEELYARD_THREADS": "2", "COLUMNS": "120"}
        command = [sys.executable, "-m", "steelyard", "demo", "--model", str(gemma)]
        command += ["--port", str(taken.getsockname()[1])]
        errors = tmp_path / "errors"
        with errors.open("w") as err:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment)
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "Ctrl-C stops it" in line:
                break
        text = "".join(printed)
        assert "tokens evaluated" in text, errors.read_text()
        assert all(option["id"] in text for option in TICKET["options"])
        process.send_signal(number)
        assert process.wait(60) == ExitCode.INTERRUPTED
    assert "is taken" in errors.read_text()
    assert "the server has stopped" in errors.read_text()
    (log,) = tmp_path.glob("logs/*.log")
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


def test_the_demo_ends_when_its_server_cannot_start(tmp_path):
    model = tmp_path / "x.gguf"
    model.write_bytes(b"no model")
    environment = os.environ | {"STEELYARD_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "steelyard", "demo", "--once", "--port", "0", "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == ExitCode.MODEL, done.stderr
    assert str(model) in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_no_package_shadows_another():
    """An ``__init__.py`` in one of these would hide PyPI's ``constructs``, which the AWS CDK needs."""
    root = Path(__file__).resolve().parents[2]
    assert (root / "pyproject.toml").is_file()
    for folder in ("constructs", "tests", "tests/constructs"):
        assert not (root / folder / "__init__.py").exists(), folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_start_waits_until_the_child_is_known(tmp_path, monkeypatch, number):
    """Or nobody would stop it: the fork is over, and its process not yet ours."""
    started = []

    def interrupted(command, **_):
        signal.raise_signal(number)
        started.append(command)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)

    stopped = []
    monkeypatch.setattr(server_process, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": interrupted}))
    monkeypatch.setattr(server_process, "stop", lambda process: stopped.append((process.kill(), process.wait())))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            server_process.running_server([], url="http://127.0.0.1:1", log=tmp_path / "log").__enter__()
    finally:
        assert signal.signal(signal.SIGTERM, before) is signal.default_int_handler
    assert len(started) == len(stopped) == 1


def test_no_cli_server_is_left_behind(tmp_path, gemma):
    """SIGTERM in the middle of loading stops the child too."""
    environment = os.environ | {"STEELYARD_CACHE": str(tmp_path), "STEELYARD_THREADS": "2"}
    command = [sys.executable, "-m", "steelyard", "demo", "--port", "0", "--model", str(gemma)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    limit = time.monotonic() + 60
    while not (found := children.read_text().split()) and time.monotonic() < limit:
        time.sleep(0.02)
    process.terminate()
    # A shell shows 130 for both: CPython ends itself with SIGINT where one came in the middle of an exec in an import.
    assert process.wait(60) in (ExitCode.INTERRUPTED, -signal.SIGINT)
    assert found
    assert not Path(f"/proc/{found[0]}").exists()
