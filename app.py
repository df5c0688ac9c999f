"""The CDK app: an environment and a release become stacks.

`cdk synth` is of dev with the sample release; `-c environment=NAME` (or `env`) and `-c release=ID` name others,
`-c bases=FILE` another list of the containers that images are built on. With `-c pipeline=FILE` it is of a pipeline.
Any other key is refused.
"""

from __future__ import annotations

import os
import sys

from steelyard.cdk.nodejs import use_packaged_node

use_packaged_node()  # before aws_cdk, which starts Node.js when it is imported

import aws_cdk as cdk  # noqa: E402

from stacks.context import choices  # noqa: E402
from stacks.environment_app import add_environment, pinned_context  # noqa: E402
from stacks.pipeline_stack import PipelineStack  # noqa: E402
from steelyard.environments.files import environment_names, load_environment  # noqa: E402
from steelyard.environments.pipeline import load_pipeline  # noqa: E402
from steelyard.releases.bases import load_bases  # noqa: E402
from steelyard.releases.manifest import load_release  # noqa: E402
from steelyard_base.exit_codes import CommandError  # noqa: E402
from steelyard_constructs.refusal import Refused  # noqa: E402


def main() -> None:
    """Synthesize into `cdk.out`, or where the CDK command line says."""
    app = cdk.App(
        context=pinned_context(),
        outdir=os.environ.get("CDK_OUTDIR", "cdk.out"),
        analytics_reporting=False,
        # It takes half of the time of a synth. The tests run it, with cfn-lint and cdk-nag, over every environment.
        builtin_cloud_formation_validation=False,
    )
    chosen = choices(app.node.get_all_context())
    if chosen.pipeline is not None:
        PipelineStack(app, *load_pipeline(chosen.pipeline))
        app.synth()
        return
    release, bases = load_release(chosen.release), load_bases(chosen.bases)
    for name in environment_names() if chosen.environment == "all" else [chosen.environment]:
        add_environment(app, load_environment(name), release, bases)
    app.synth()


if __name__ == "__main__":
    try:
        main()
    except (CommandError, Refused) as refused:
        sys.exit(f"{refused}\n{getattr(refused, 'hint', None) or ''}".rstrip())
