"""Every construct has an example that synthesizes, passes the checkers, and allows no more than is listed here."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template
from constructs import Construct, IConstruct

import steelyard_constructs

MODULES = [
    importlib.import_module(f"steelyard_constructs.{module.name}")
    for module in pkgutil.iter_modules(steelyard_constructs.__path__)
]
ALL: list[type[Construct]] = [
    value
    for module in MODULES
    for name, value in inspect.getmembers(module, inspect.isclass)
    if issubclass(value, Construct) and value.__module__ == module.__name__ and not name.startswith("_")
]
# A base is shown by the constructs that are made of it.
CONSTRUCTS = [one for one in ALL if not any(other is not one and issubclass(other, one) for other in ALL)]

WITHOUT_AN_ARN = {
    "application-autoscaling:DescribeScalableTargets": "the list of scalable targets has no ARN",
    "cloudwatch:PutMetricData": "metrics have no ARN; a condition limits the namespace",
    "ecr:GetAuthorizationToken": "the login to a registry has no ARN",
    "ec2:DeleteNetworkInterfacePermission": "permissions on network interfaces have no ARN",
    "ec2:DescribeDhcpOptions": "EC2's descriptions have no ARN",
    "ec2:DescribeNetworkInterfaces": "EC2's descriptions have no ARN",
    "ec2:DescribeSecurityGroups": "EC2's descriptions have no ARN",
    "ec2:DescribeSubnets": "EC2's descriptions have no ARN",
    "ec2:DescribeVpcs": "EC2's descriptions have no ARN",
    "sagemaker:CallWithBearerToken": "bearer tokens have no ARN",
}
"""Actions that may have the resource ``*``."""

NAMES_NOT_KNOWN_BEFOREHAND = {
    "ec2:CreateNetworkInterface": "a condition limits the interfaces to the endpoint's subnets",
    "ec2:CreateNetworkInterfacePermission": "a condition limits the interfaces to the endpoint's subnets",
    "ec2:DeleteNetworkInterface": "a condition limits the interfaces to the endpoint's subnets",
    "s3:AbortMultipartUpload": "files of one model, published under the hash of their content",
    "s3:DeleteObject": "the objects of a bucket that is emptied before it is deleted",
    "s3:DeleteObjectVersion": "the objects of a bucket that is emptied before it is deleted",
    "s3:GetObject": "the files of one model",
    "s3:GetObjectVersion": "artifacts of a pipeline, whose keys CodePipeline makes up",
    "s3:PutObject": "files of one model, published under the hash of their content",
}
"""Actions whose resource may end in ``*`` below something that is named."""


def run_example(construct: type[Construct]) -> cdk.Stack:
    """Run the example of a docstring; the stack that it makes, called ``stack``."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    source = inspect.getdoc(construct) or ""
    example = parser.get_doctest(source, {}, construct.__name__, inspect.getsourcefile(construct), 0)
    assert example.examples, f"the docstring of {construct.__name__} has no example"
    report: list[str] = []
    result = runner.run(example, out=report.append, clear_globs=False)
    assert result.failed == 0, "".join(report)
    assert construct.__name__ in source.partition(">>>")[2]
    return example.globs["stack"]


@pytest.fixture(params=CONSTRUCTS, ids=lambda construct: construct.__name__)
def example(request: pytest.FixtureRequest, at_root: Path) -> cdk.Stack:
    return run_example(request.param)


def test_the_example_synthesizes_and_passes_the_checkers(
    example: cdk.Stack,
    nag_findings: Callable[[IConstruct], list[str]],
    lint_findings: Callable[[cdk.Stack], list[str]],
    allowed: Callable[[cdk.Stack], set[tuple[str, str]]],
) -> None:
    assert Template.from_stack(example).to_json()["Resources"]
    assert nag_findings(example) == []
    assert lint_findings(example) == []
    for action, resource in allowed(example):
        assert "*" not in action, f"{action} on {resource}"
        if resource == "*":
            assert action in WITHOUT_AN_ARN, f"{action} has the resource *, and is not listed"
        elif "*" in resource:
            assert action in NAMES_NOT_KNOWN_BEFOREHAND, f"{action} on {resource} is not listed"


def test_every_construct_is_found() -> None:
    """A module holds one construct, or facts that constructs share."""
    by_module: dict[str, list[str]] = {}
    for construct in ALL:
        by_module.setdefault(construct.__module__.rpartition(".")[2], []).append(construct.__name__)
    assert all(len(names) == 1 for names in by_module.values()), by_module
    assert {
        "ArtifactStore",
        "BucketEmptier",
        "BuildProject",
        "CallerRole",
        "ImageBuild",
        "ImageRepository",
        "ModelBuild",
    } <= {name for names in by_module.values() for name in names}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_module_says_what_it_is_for(module: ModuleType) -> None:
    assert (module.__doc__ or "").strip()


def test_the_folder_of_the_package_is_no_package() -> None:
    """``constructs/__init__.py`` would hide PyPI's ``constructs``; with one in ``tests``, so might a test's folder."""
    root = Path(__file__).parents[2]
    assert not (root / "constructs" / "__init__.py").exists()
    assert not (root / "tests" / "infra" / "__init__.py").exists()
    assert not (root / "tests" / "__init__.py").exists()
    assert (root / "constructs") not in Path(inspect.getfile(Construct)).parents
