"""The CDK's command line as a child process."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from steelyard.cdk.nodejs import ROOT, cdk_command, with_packaged_node
from steelyard_base.exit_codes import CommandError, ExitCode

CONCURRENCY = 4
"""Stacks deployed at a time: endpoints do not depend on one another, and each takes minutes on AWS."""


def temporary_assembly() -> Path:
    """Make a folder for templates that goes with this process: two commands of one checkout must not share one."""
    folder = Path(mkdtemp(prefix="steelyard-cdk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass(frozen=True, kw_only=True)
class Cdk:
    """The CDK's command line for one environment and release.

    What it prints goes to standard error, like all progress; standard output is for results.

    Attributes:
        environment: The environment for the app: its name, or the absolute path of its file.
        release: The release for the app: its name, or the absolute path of its manifest.
        bases: Absolute path of a file of base images; None for the one of the checkout.
        assembly: Where the synthesized templates go.
        root: The checkout, with ``cdk.json``.
    """

    environment: str
    release: str
    bases: Path | None = None
    assembly: Path = field(default_factory=temporary_assembly)
    root: Path = ROOT

    def bootstrap(self, *, account: str, region: str, qualifier: str, stack: str) -> None:
        """Prepare an account and region for deployments by the CDK.

        Args:
            account: The account.
            region: The region.
            qualifier: The part of the names of what is made.
            stack: The stack that makes it.

        Raises:
            CommandError: The CDK failed; what it said stands above.
        """
        self._run("bootstrap", f"aws://{account}/{region}", "--qualifier", qualifier, "--toolkit-stack-name", stack)

    def synth(self) -> None:
        """Synthesize all stacks into ``assembly``, from which the other methods deploy and destroy.

        Raises:
            CommandError: The app refused; its sentences stand above.
        """
        shutil.rmtree(self.assembly, ignore_errors=True)
        context: tuple[str, ...] = ("-c", f"environment={self.environment}", "-c", f"release={self.release}")
        if self.bases is not None:
            context = (*context, "-c", f"bases={self.bases}")
        self._run("synth", "--quiet", *context, "--output", str(self.assembly))

    def declared(self) -> frozenset[str]:
        """Names of the stacks in ``assembly``."""
        return frozenset(self._template_files())

    def template(self, stack: str) -> dict[str, Any]:
        """Return the template in ``assembly`` of a stack that is declared there."""
        path = self.assembly / self._template_files()[stack]
        template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return template

    def _template_files(self) -> dict[str, str]:
        manifest = json.loads((self.assembly / "manifest.json").read_text(encoding="utf-8"))
        return {
            str(artifact["properties"].get("stackName", identifier)): str(artifact["properties"]["templateFile"])
            for identifier, artifact in manifest["artifacts"].items()
            if artifact["type"] == "aws:cloudformation:stack"
        }

    def deploy(self, *stacks: str, adopt: bool = False) -> None:
        """Deploy ``stacks`` and what they depend on; all without any.

        Args:
            stacks: Their names.
            adopt: Whether what exists under a name of the templates is taken over, where they retain it.

        Raises:
            CommandError: A stack failed; CloudFormation's reason stands above, and the stack is as it was before.
        """
        options: tuple[str, ...] = ("--require-approval", "never", "--concurrency", str(CONCURRENCY))
        if adopt:
            options = (*options, "--import-existing-resources")
        self._run("deploy", *(stacks or ("--all",)), *options, *self._synthesized)

    def deploy_template(self, stack: str, template: Mapping[str, Any]) -> None:
        """Deploy one stack with another template than that in ``assembly``, as the CDK would: it may be of any size.

        Raises:
            CommandError: The stack failed; CloudFormation's reason stands above, and the stack is as it was before.
        """
        text = json.dumps(template)
        file = self._template_files()[stack]
        # The CDK publishes a template under its hash, and not again where that is there.
        old = _sha256((self.assembly / file).read_text(encoding="utf-8"))
        with TemporaryDirectory(prefix="steelyard-cdk-") as name:
            folder = Path(name)
            for each in self.assembly.resolve().iterdir():
                if each.name == file:
                    (folder / file).write_text(text, encoding="utf-8")
                elif each.suffix == ".json":
                    content = each.read_text(encoding="utf-8").replace(old, _sha256(text))
                    (folder / each.name).write_text(content, encoding="utf-8")
                else:
                    (folder / each.name).symlink_to(each)
            self._run("deploy", stack, "--exclusively", "--require-approval", "never", "--app", name)

    def destroy(self, *stacks: str) -> None:
        """Destroy ``stacks`` and what depends on them, without a question; all without any.

        Raises:
            CommandError: A stack could not be destroyed; CloudFormation's reason stands above.
        """
        self._run("destroy", *(stacks or ("--all",)), "--force", *self._synthesized)

    @property
    def _synthesized(self) -> tuple[str, ...]:
        return ("--app", str(self.assembly))

    def _run(self, *words: str) -> None:
        if not (self.root / "cdk.json").is_file():
            raise CommandError(
                f"there is no CDK app at {self.root}", code=ExitCode.USAGE, hint="Run this from a clone of the project."
            )
        done = subprocess.run(  # noqa: S603 - the pinned command
            [*cdk_command(), *words], cwd=self.root, env=_child_environment(), stdout=sys.stderr.fileno(), check=False
        )
        if done.returncode:
            raise CommandError(f"cdk {words[0]} failed with exit code {done.returncode}", hint="Its reason is above.")


def file_reference(named: str) -> str:
    """Return an environment or a release for the app: a name, or the absolute path of a file.

    The app runs in another folder, so a path must not depend on this one.
    """
    return str(Path(named).resolve()) if named.endswith((".json", ".toml")) else named


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _child_environment() -> dict[str, str]:
    # Usage reports would be sent to AWS even when everything else goes to the local cloud.
    return with_packaged_node({**os.environ, "CDK_DISABLE_CLI_TELEMETRY": "true"})
