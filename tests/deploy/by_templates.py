"""Stands in for the CDK's command line, each start of which takes seconds: hands templates to CloudFormation itself."""

from __future__ import annotations

import json
import time
import uuid

from steelyard.aws.cloudformation import Stack, find_stack
from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk
from steelyard.deploy.scaling import deployed_template
from steelyard_base.exit_codes import CommandError

TEMPLATES = "templates"
"""A bucket for them."""

PARTS = ("Artifacts", "Build", "Observability", "Endpoint-decision")


def deploy_template(aws: Aws, name: str, template: dict[str, object]) -> None:
    """Make or update one stack, unless it has this template."""
    client, stack = aws.client("cloudformation"), _settled(aws, name)
    if stack is not None and stack.lived and template == deployed_template(aws, stack):
        return
    key = f"{uuid.uuid4().hex}.json"
    aws.client("s3").put_object(Bucket=TEMPLATES, Key=key, Body=json.dumps(template))
    act = client.create_stack if stack is None else client.update_stack
    url = f"https://s3.amazonaws.com/{TEMPLATES}/{key}"
    act(StackName=name, TemplateURL=url, Capabilities=["CAPABILITY_NAMED_IAM"])
    now = _settled(aws, name)
    if now is None or now.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        raise CommandError(f"the stack {name} failed")


def _settled(aws: Aws, name: str) -> Stack | None:
    """The stack when nothing is done to it any more, as the CDK waits for it, too."""
    while (now := find_stack(aws, name)) is not None and now.status.endswith("_IN_PROGRESS"):
        time.sleep(0.1)
    return now


class ByTemplates(Cdk):
    """Deploys what is in ``assembly`` by CloudFormation itself."""

    def deploy(self, *stacks: str, adopt: bool = False) -> None:
        names = [f"Steelyard-{self.environment}-{part}" for part in PARTS]
        assert self.declared() <= set(names)
        for name in names:
            if name in self.declared() and (not stacks or name in stacks):
                deploy_template(Aws("us-east-1"), name, self.template(name))
