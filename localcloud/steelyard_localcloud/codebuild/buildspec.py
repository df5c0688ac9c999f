"""The part of CodeBuild's build specification (version 0.2) that the buildspecs of this repository use.

Anything else is refused by name. A build that ignored a line here would show something else than AWS will.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences

PHASES = ("install", "pre_build", "build", "post_build")
"""The phases in the order in which they run."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Command = Annotated[str, StringConstraints(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)


class Environment(_Strict):
    """``env``: the shell, variables, and which of them a build hands on."""

    shell: Annotated[Literal["bash", "sh"], Field(description="The shell of every command.")] = "sh"
    variables: Annotated[
        dict[Name, str], Field(description="Variables; those of the project and of the start win.")
    ] = {}
    exported_variables: Annotated[
        list[Name], Field(alias="exported-variables", description="Variables that are part of the result.")
    ] = []


class Phase(_Strict):
    """One phase: its commands, what always follows them, and what its failure means."""

    commands: Annotated[list[Command], Field(min_length=1, description="Run in order, until one fails.")]
    finally_: Annotated[
        list[Command], Field(alias="finally", description="Run after the commands, failed or not.")
    ] = []
    on_failure: Annotated[
        Literal["ABORT", "CONTINUE"] | None,
        Field(alias="on-failure", description="ABORT ends the build, CONTINUE starts the next phase."),
    ] = None
    runtime_versions: Annotated[
        dict[Literal["python"], str] | None, Field(alias="runtime-versions", description="Of Python only.")
    ] = None

    @field_validator("runtime_versions")
    @classmethod
    def _a_python_3(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for version in (value or {}).values():
            major, _, minor = version.partition(".")
            if version != "latest" and (major != "3" or not (re.fullmatch(r"[0-9]+", minor) or minor in ("", "x"))):
                raise ValueError(f'{version!r} is not a Python version; write one such as "3.12"')
        return value


class Phases(_Strict):
    """``phases``; each may be left out."""

    install: Phase | None = None
    pre_build: Phase | None = None
    build: Phase | None = None
    post_build: Phase | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> Phases:
        if not any(getattr(self, name) for name in PHASES):
            raise ValueError(f"there is no phase; give at least one of {', '.join(PHASES)}")
        for name in PHASES[1:]:
            phase: Phase | None = getattr(self, name)
            if phase is not None and phase.runtime_versions is not None:
                raise ValueError(f"runtime-versions is in {name}; it belongs in install")
        return self


class Artifacts(_Strict):
    """``artifacts``: the files that a pipeline takes from a build; nobody else does."""

    files: Annotated[list[Command], Field(min_length=1, description="Names and patterns below the folder.")]
    base_directory: Annotated[
        Command, Field(alias="base-directory", description="The folder, from that of the source.")
    ] = "."

    @model_validator(mode="after")
    def _below_the_source(self) -> Artifacts:
        for each in (self.base_directory, *self.files):
            if each.startswith("/") or ".." in each.split("/"):
                raise ValueError(f"{each!r} is not below the folder of the source")
        return self


class Buildspec(_Strict):
    """A build specification."""

    version: Literal["0.2"]
    env: Environment = Environment()
    phases: Phases
    artifacts: Artifacts | None = None

    @field_validator("version", mode="before")
    @classmethod
    def _a_number_is_fine(cls, value: object) -> object:
        return "0.2" if isinstance(value, float) and value == 0.2 else value

    def phase(self, name: str) -> Phase | None:
        """The phase of that name; None when it was left out."""
        found: Phase | None = getattr(self.phases, name)
        return found

    @property
    def python(self) -> str | None:
        """The version of Python that it asks for, such as ``3.12``; None when it asks for none."""
        install = self.phases.install
        return (install.runtime_versions or {}).get("python") if install is not None else None


def parse(text: str, *, name: str = "buildspec") -> Buildspec:
    """Read a build specification.

    Args:
        text: YAML.
        name: What to call it in an error, such as its path.

    Raises:
        CommandError: It is no YAML, or holds something that is not run here, with every fault and its place.
    """
    try:
        content = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CommandError(f"{name} cannot be read as YAML: {error}", code=ExitCode.USAGE) from error
    if not isinstance(content, dict):
        raise CommandError(
            f"{name} is not a build specification: it holds {type(content).__name__}, not a mapping",
            code=ExitCode.USAGE,
            hint="It begins with `version: 0.2` and has `phases`.",
        )
    try:
        return Buildspec.model_validate(content)
    except ValidationError as error:
        raise CommandError(
            f"{name} is not a build specification that can be run here:\n{sentences(error)}",
            code=ExitCode.USAGE,
            hint="docs/explanation/local-cloud.md has the part of CodeBuild's build specification that is run.",
        ) from error


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose mappings have each key once; plain PyYAML takes the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
