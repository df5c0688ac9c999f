"""Environments, catalogue, manifests: a value is of its field's type, or it is refused with file, field and value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from steelyard.environments.files import load_environment, parse_environment
from steelyard.environments.schema import Environment
from steelyard.models.catalogue import CatalogueEntry, read_entry
from steelyard.models.manifest import ModelManifest, read_manifest
from steelyard.releases.bases import load_bases
from steelyard.releases.manifest import FOLDER, Release, parse_release
from steelyard_base.exit_codes import CommandError
from steelyard_base.strict import Table, fields_of

# What pydantic takes for a value of the type unless it is told to be strict, and what nobody can mean.
LOOKALIKES: dict[type, list[Any]] = {
    int: [True, "1", 1.0, math.inf, math.nan],
    bool: ["yes", "true", 1, 0, 1.0],
    float: [True, "4", math.inf, -math.inf, math.nan],
    str: [1, True, 1.0],
}


def within(annotation: Any) -> list[Any]:
    """The types that an annotation is made of."""
    parts = get_args(annotation)
    return [each for part in parts for each in within(part)] if parts else [annotation]


def kinds(kind: type) -> set[type]:
    """A part of a file, and those of its fields, however deep."""
    inner = {
        part
        for field in fields_of(kind).values()
        for part in within(field.annotation)
        if isinstance(part, type) and issubclass(part, (BaseModel, Table))
    }
    return {kind}.union(*(kinds(each) for each in inner))


KINDS: set[type] = set().union(*(kinds(each) for each in (Environment, Release, CatalogueEntry, ModelManifest)))
SCALARS = [
    (part, name, value)
    for part in sorted(KINDS, key=lambda each: f"{each.__module__}.{each.__name__}")
    for name, field in fields_of(part).items()
    for scalar, lookalikes in LOOKALIKES.items()
    if within(field.annotation)[0] is scalar and "dict" not in str(field.annotation) + str(field.default_factory)
    for value in lookalikes
]


@pytest.mark.parametrize(
    ("part", "field", "value"), SCALARS, ids=lambda each: each.__name__ if isinstance(each, type) else repr(each)
)
def test_no_field_takes_a_value_of_another_type(part: type, field: str, value: Any) -> None:
    """Whatever else is missing, the field is among the faults."""
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(part).validate_python({field: value})
    assert field in {fault["loc"][0] for fault in refused.value.errors() if fault["type"] != "missing"}


def test_every_scalar_is_tried() -> None:
    tried = {(part.__name__, field) for part, field, _ in SCALARS}
    assert {
        ("Endpoint", "instances"),
        ("Endpoint", "threads"),
        ("Environment", "log_retention_days"),
        ("CreatedNetwork", "zones"),
        ("Budget", "monthly_usd"),
        ("Caller", "bearer_token"),
        ("PooledInstance", "priority"),
        ("Canary", "wait_s"),
        ("HubModel", "bytes"),
        ("Scaling", "target_concurrency"),
        ("Release", "sample"),
        ("ReleaseSource", "dirty"),
        ("ReleasedFile", "size"),
        ("ModelFile", "size"),
        ("ManifestFile", "size"),
        ("Claims", "context_length"),
        ("PackagePart", "wheel_size"),
    } <= tried


def test_what_toml_and_json_have_no_type_for_is_still_read() -> None:
    scaling = {"min_instances": 1, "max_instances": 2, "target_concurrency": 4}
    endpoint = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", "scaling": scaling}
    data = {
        "region": "us-east-1",
        "removal_policy": "destroy",
        "endpoints": {"one": endpoint},
        "alarms": {"emails": ["a@example.com"]},
    }
    made = parse_environment(data, name="test", source="test.toml")
    assert made.alarms.emails == ("a@example.com",)
    limits = made.endpoints["one"].scaling
    assert limits is not None
    assert limits.target_concurrency == 4.0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("log_retention_days = true", "log_retention_days: Input should be a valid integer (it is True)"),
        ("budget = { monthly_usd = true, emails = ['a@example.com'] }", "budget.monthly_usd: Input should be a valid"),
        ("endpoints = { one = 3 }", "endpoints.one: this is a table of fields, not a single value (it is 3)"),
        ("artifacts = 3", "artifacts: this is a table of fields, not a single value (it is 3)"),
        ("network = { kind = 'created', zones = true }", "network.created.zones: Input should be a valid integer"),
        (
            "endpoints = { x = { instances = '2' } }",
            "endpoints.x.instances: Input should be a valid integer (it is '2'",
        ),
        ("endpoints = { x = { threads = true } }", "endpoints.x.threads: Input should be a valid integer (it is True"),
        ("endpoints = { x = { caller = { bearer_token = 'yes' } } }", "endpoints.x.caller.bearer_token: Input should"),
        (
            "endpoints = { x = { instance_pool = [{ instance_type = 'ml.c6i.large', priority = true }] } }",
            "endpoints.x.instance_pool.0.priority: Input should be a valid integer (it is True)",
        ),
        (
            "endpoints = { x = { scaling = { target_concurrency = inf } } }",
            "endpoints.x.scaling.target_concurrency: Input should be a finite number (it is inf)",
        ),
        # No TOML that Python reads; each of these ended in a traceback.
        (f"log_retention_days = {'9' * 5000}", "cannot read the environment file"),
        (f"zones = {'[' * 9000}{']' * 9000}", "cannot read the environment file"),
    ],
)
def test_an_environment_file_is_refused_with_its_field(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"region = 'us-east-1'\nremoval_policy = 'destroy'\n{line}\n")
    with pytest.raises(CommandError) as refused:
        load_environment("mine", folder=tmp_path)
    assert told in refused.value.message
    assert str(path) in refused.value.message


@pytest.mark.parametrize("value", ["yes", 1, "true"])
def test_the_flag_that_turns_the_check_of_the_content_off_is_true_or_false(value: object) -> None:
    content = json.loads((FOLDER / "sample.json").read_text())
    with pytest.raises(CommandError, match=r"r\.json is refused:\n- sample: Input should be a valid boolean"):
        parse_release(content | {"sample": value}, source="r.json")


@pytest.mark.parametrize("value", [True, "253113024", 253113024.0])
def test_a_size_in_a_manifest_is_a_whole_number(value: object) -> None:
    content = json.loads((FOLDER / "sample.json").read_text())
    content["models"]["chat"]["files"][0]["size"] = value
    with pytest.raises(CommandError, match=r"models\.chat\.files\.0\.size: Input should be a valid integer"):
        parse_release(content, source="r.json")
    manifest = {"format": "steelyard-model/2", "files": [{"size": value}]}
    with pytest.raises(CommandError, match=r"files\.0\.size: Input should be a valid integer"):
        read_manifest(json.dumps(manifest).encode())


@pytest.mark.parametrize("text", [f"a = {'9' * 5000}", "[" * 9000, "a = ", "a = '\0'"])
@pytest.mark.parametrize("read", [read_entry, load_bases])
def test_what_python_cannot_read_as_toml_is_told_with_the_file(read: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(CommandError, match="cannot read") as refused:
        read(path)
    assert str(path) in refused.value.message
