"""Reusable AWS CDK constructs of Steelyard.

Each module holds one construct (or one table of facts that constructs share). A construct takes plain, typed,
keyword-only properties, so that it can be used in any CDK app; its docstring has an example that the tests synthesize.
Import a construct from its module: ``from steelyard_constructs.artifact_store import ArtifactStore``.
"""
