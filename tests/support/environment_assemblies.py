"""Environments synthesized in this process, once for each test run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import aws_cdk as cdk

from stacks.environment_app import add_environment, pinned_context
from steelyard.environments.files import environment_names, load_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release, load_release

NAMES = environment_names()

# Removed when the process ends.
_FOLDER = TemporaryDirectory(prefix="steelyard-cdk-")


def app_of(environment: Environment, release: Release | None = None, *, validated: bool = False) -> cdk.App:
    """The app of one environment, not yet synthesized; with or without the CDK's own validation of templates."""
    app = cdk.App(
        context=pinned_context(),
        outdir=mkdtemp(dir=_FOLDER.name),
        analytics_reporting=False,
        builtin_cloud_formation_validation=validated,
    )
    add_environment(app, environment, release or load_release())
    return app


@cache
def ours(name: str) -> cdk.App:
    """The app of one of our environments with the sample release."""
    return app_of(load_environment(name))


def stacks_of(app: cdk.App) -> list[cdk.Stack]:
    """Its stacks."""
    return [child for child in app.node.children if isinstance(child, cdk.Stack)]


def templates_of(app: cdk.App) -> dict[str, dict[str, Any]]:
    """Its templates by the part of the environment that they are: ``Artifacts``, ``Endpoint-chat``."""
    assembly = app.synth()
    return {
        stack.stack_name.split("-", 2)[2]: json.loads(Path(assembly.directory, stack.template_file).read_text())
        for stack in assembly.stacks
    }


@cache
def our_templates(name: str) -> dict[str, dict[str, Any]]:
    """The templates of one of our environments with the sample release."""
    return templates_of(ours(name))


def of_type(template: dict[str, Any], type_: str) -> list[dict[str, Any]]:
    """Properties of a template's resources of one type."""
    return [each.get("Properties", {}) for each in template["Resources"].values() if each["Type"] == type_]


def only(template: dict[str, Any], type_: str) -> dict[str, Any]:
    """Properties of the one resource of a type."""
    (found,) = of_type(template, type_)
    return found
