"""Settings: where they come from, what is refused, and that both ways to start the server say the same about it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest

import steelyard_runtime.http.serve as server
from steelyard import cli
from steelyard.commands.setting_flags import _flag_type, environment_name
from steelyard_base.exit_codes import ExitCode
from steelyard_localcloud.sagemaker import llama_flags
from steelyard_runtime.settings import OTHER_VARIABLES, Settings, SettingsError, load_settings

ROOT = Path(__file__).resolve().parents[2]
FIELDS = Settings.model_fields
# The plain ones; those with a list of choices are checked against it.
TEXTS = [name for name, field in FIELDS.items() if _flag_type(field) is str]
NUMBERS = [name for name, field in FIELDS.items() if field.annotation in (int, float)]
SWITCHES = [name for name, field in FIELDS.items() if field.annotation is bool]
OURS = "STEELYARD_"
NOT_UTF_8 = os.fsdecode(b"caf\xe9")


@pytest.fixture(autouse=True)
def no_ports(monkeypatch):
    for name in ("PORT", "SAGEMAKER_BIND_TO_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def written(tmp_path):
    """A settings file with that content."""

    def write(content):
        path = tmp_path / "settings.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(**given):
    with pytest.raises(SettingsError) as caught:
        load_settings(**given)
    # What is told must fit on any terminal.
    return str(caught.value).encode("utf-8").decode()


# --- both ways to start -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["steelyard serve", "python -m steelyard_runtime.http.serve"])
def start(request, capsys, monkeypatch):
    """Start the server; returns the status and what was written to standard error. It must not get to serving."""
    monkeypatch.setattr(server, "serve", lambda _: pytest.fail("it serves"))

    def start():
        status = cli.run(["serve"]) if request.param == "steelyard serve" else server.main()
        return status, " ".join(capsys.readouterr().err.split())

    return start


def broken(folder):
    """Every kind of settings file that cannot be used, with what is told about it."""
    folder.joinpath("folder").mkdir()
    contents = {
        "value": (b"threads = \n", "is not TOML"),
        "bytes": (b'model = "\xff"\n', "is not UTF-8: byte 10 is 0xff"),
        "deep": (b"model = " + b"[" * 100_000, "is not TOML"),
        "long": (b"threads = " + b"9" * 10_000, "is not TOML"),
        "twice": (b"threads = 1\nTHREADS = 2\n", "names a setting twice"),
        "range": (b"threads = 5000\n", "less than or equal to 1024 (given: 5000)"),
        "name": (b"threds = 4\n", "threds is no setting: did you mean threads?"),
        "type": (b"threads = true\n", "threads: Input should be a valid integer (given: True)"),
    }
    for name, (content, _) in contents.items():
        folder.joinpath(name).write_bytes(content)
    told = {name: told for name, (_, told) in contents.items()}
    return told | {"folder": "cannot be read: Is a directory", "none": "does not exist", "name/x": "cannot be read"}


def test_a_settings_file_that_cannot_be_used_ends_the_start_with_status_two(start, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert server.WRONG_SETTINGS == ExitCode.USAGE == 2
    for name, told in broken(tmp_path).items():
        monkeypatch.setenv(OURS + "CONFIG", str(tmp_path / name))
        status, said = start()
        assert (status, "Traceback" in said) == (2, False), name
        assert told in said
        assert name == "range" or str(tmp_path / name) in said


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("HOST", "", "0.0.0.0 for all interfaces"),
        ("MODEL", NOT_UTF_8, "bytes that are not UTF-8"),
        ("CONFIG", f"/{NOT_UTF_8}", r"/caf\udce9 does not exist"),
        ("THREADS", "many", "'many'"),
        ("THREDS", "4", f"did you mean {OURS}THREADS?"),
    ],
)
def test_a_wrong_variable_ends_the_start_with_status_two(start, monkeypatch, name, value, told):
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv(OURS + name, value)
    status, said = start()
    assert (status, "Traceback" in said, told in said) == (2, False, True), said


# --- texts ------------------------------------------------------------------------------------------------------------


def test_the_texts_are_known():
    named = "model model_id model_aliases host chat_template decisions decisions_sha256 shadow_decisions"
    assert [*named.split(), "endpoint_name", "decision_records"] == TEXTS


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", " ", "\t\n", "\u3000", "\u200b"])
def test_a_blank_text_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(environment_name(name), value)
    assert f"{name}: it is blank; " in refusal()
    monkeypatch.delenv(environment_name(name))
    assert f"{name}: it is blank; " in refusal(**{name: value})


def test_a_blank_text_of_the_file_is_refused(written):
    for name in TEXTS:
        assert f"{name}: it is blank; " in refusal(config=written(f'{name} = " "\n'))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x1b[31m", "a\x7f", "a\x85b", "a\u2028b"])
def test_control_characters_are_refused(monkeypatch, name, value):
    monkeypatch.setenv(environment_name(name), value)
    found = refusal()
    assert f"{name}: it holds the control character " in found
    assert found.isprintable()


@pytest.mark.parametrize("name", FIELDS)
def test_bytes_that_are_not_utf_8_are_refused(monkeypatch, name):
    monkeypatch.setenv(environment_name(name), NOT_UTF_8)
    assert refusal().startswith(f"the settings are wrong: {name}: it holds bytes that are not UTF-8; ")


@pytest.mark.parametrize("value", ["café", "模型 1", "a\u3000b", "a\u202fb", "👩\u200d💻"])
def test_text_of_any_script_is_taken(monkeypatch, value):
    free = [name for name in TEXTS if name != "decisions_sha256"]
    for name in free:
        monkeypatch.setenv(environment_name(name), value)
    settings = load_settings()
    assert [getattr(settings, name) for name in free] == [value] * len(free)


# --- the port ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PORT", "port", "Port"])
@pytest.mark.parametrize("value", ["9999", "tcp://10.0.0.1:80", ""])
def test_a_variable_without_our_prefix_is_nobodys_setting(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert load_settings().port == Settings().port == 8080
    monkeypatch.setenv(OURS + "PORT", "1")
    assert load_settings().port == 1


@pytest.mark.parametrize("name", FIELDS)
def test_no_setting_is_read_without_the_prefix(monkeypatch, name):
    for variable in (name, name.upper()):
        monkeypatch.setenv(variable, "nonsense\n")
    assert getattr(load_settings(), name) == FIELDS[name].default


def test_the_port_comes_from_flag_then_our_variable_then_sagemakers_then_the_file(monkeypatch, written):
    assert load_settings(config=written("")).port == 8080
    config = written("port = 4\n")
    assert load_settings(config=config).port == 4
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "3")
    assert load_settings(config=config).port == load_settings().port == 3
    monkeypatch.setenv(OURS + "PORT", "2")
    assert load_settings(config=config).port == load_settings().port == 2
    assert load_settings(config=config, port=1).port == load_settings(port=1).port == 1


def test_a_wrong_port_of_sagemaker_is_refused(monkeypatch):
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "70000")
    assert "port: Input should be less than or equal to 65535 (given: '70000')" in refusal()


def test_no_other_name_of_the_port_works_in_the_file(written):
    for name in (OURS + "PORT", "SAGEMAKER_BIND_TO_PORT"):
        assert f"{name} is no setting" in refusal(config=written(f"{name} = 1\n"))


def test_the_links_of_a_kubernetes_service_are_no_misspelt_settings(monkeypatch):
    links = {"PORT": "tcp://10.0.0.1:80", "SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80"}
    links |= {"PORT_80_TCP": "tcp://10.0.0.1:80", "PORT_80_TCP_PROTO": "tcp", "PORT_80_TCP_ADDR": "10.0.0.1"}
    for name, value in links.items():
        monkeypatch.setenv(OURS + name, value)
        monkeypatch.setenv(f"{OURS}GPU_{name}", value)
    assert "enableServiceLinks: false" in refusal()
    monkeypatch.setenv(OURS + "PORT", "81")
    assert load_settings().port == 81


# --- names ------------------------------------------------------------------------------------------------------------


def sources():
    """Every file of the project that may read or set a variable; test modules invent names."""
    names = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and not path.name.startswith("test_")]


def test_every_variable_with_our_prefix_is_a_setting_or_in_the_list():
    found = set()
    for path in sources():
        # The list itself must not keep a name in it that nothing else has.
        if path != ROOT / "runtime/steelyard_runtime/settings.py":
            found |= set(re.findall(rb"(?<![A-Z0-9_])STEELYARD_[A-Z0-9]\w*", path.read_bytes()))
    found = {name.decode() for name in found}
    assert found - set(map(environment_name, FIELDS)) == OTHER_VARIABLES
    # Names put together where the pattern above does not see them.
    assert {name.lower() for name in llama_flags._SETTINGS.values()} <= set(FIELDS)


def test_what_the_project_reads_is_taken(monkeypatch):
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, "anything")
    assert load_settings() == Settings()


@pytest.mark.parametrize("right", sorted({*map(environment_name, FIELDS), *OTHER_VARIABLES}))
def test_every_misspelt_variable_names_the_right_one(monkeypatch, right):
    for wrong in (right[:-2] + right[-1], right + "X", right.lower() + "_"):
        with monkeypatch.context() as patch:
            patch.setenv(wrong, "1")
            found = refusal()
        assert found == f"the environment is wrong: {wrong} is no variable of Steelyard: did you mean {right}?"


def test_all_unknown_variables_are_told(monkeypatch):
    for name in ("QZXJ", "", "THREDS", "Config"):
        monkeypatch.setenv(OURS + name, "1")
    found = refusal()
    assert f"{OURS}QZXJ is no variable of Steelyard: unset it" in found
    assert f"{OURS} is no" in found
    assert f"did you mean {OURS}THREADS?" in found
    assert f"did you mean {OURS}CONFIG?" in found


def test_variables_are_read_in_any_case_as_ever(monkeypatch):
    monkeypatch.setenv(OURS.lower() + "threads", "4")
    assert load_settings().threads == 4


# --- types ------------------------------------------------------------------------------------------------------------


def others(name):
    """TOML values of every type but the setting's."""
    values = {bool: "true", int: "1", float: "1.0", str: '"1"', list: "[1]", dict: "{a = 1}", object: "1979-05-27"}
    kind = FIELDS[name].annotation
    fitting = {int: (int,), float: (int, float), bool: (bool,)}.get(kind, (str,))
    return [value for type_, value in values.items() if type_ not in fitting]


@pytest.mark.parametrize("name", FIELDS)
def test_the_file_holds_every_setting_in_its_own_type(written, name):
    for value in others(name):
        assert f"settings.toml is wrong: {name}: Input should be" in refusal(config=written(f"{name} = {value}\n"))
        assert f" is wrong: {name}: " in refusal(config=written(f"{name.upper()} = {value}\n"))


def test_all_defaults_can_be_written_into_a_file(written):
    # JSON's numbers, words and texts are TOML's.
    lines = [f"{name} = {json.dumps(field.default)}\n" for name, field in FIELDS.items() if field.default is not None]
    assert load_settings(config=written("".join(lines))).model_dump() == Settings().model_dump()


def test_a_whole_number_is_a_number_of_seconds(written):
    assert load_settings(config=written("deadline_s = 30\n")).deadline_s == 30.0


def test_variables_are_text_that_is_read_as_ever(monkeypatch):
    for name in SWITCHES:
        for text, meant in {"1": True, "true": True, "on": True, "0": False, "no": False, "FALSE": False}.items():
            monkeypatch.setenv(environment_name(name), text)
            assert getattr(load_settings(), name) is meant
    for name in NUMBERS:
        monkeypatch.setenv(environment_name(name), str(FIELDS[name].default))
    assert math.isclose(load_settings().deadline_s, FIELDS["deadline_s"].default)
    monkeypatch.setenv(OURS + "THREADS", "true")
    assert "threads: Input should be a valid integer" in refusal()


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a..b", "é..b", "é" * 64, "a" * 64 + ".example", "256.256.256.256.", "::zz"])
def test_an_impossible_address_is_one_line_of_the_log(capsys, host):
    assert server.serve(load_settings(host=host)) == server.FAILED
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "not_listening" in line]
    assert line["reason"].startswith(f"Cannot listen on {host}:8080: ")
