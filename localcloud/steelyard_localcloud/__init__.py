"""A local AWS cloud for Steelyard: ministack, with SageMaker endpoints as real processes.

``LocalCloud(home)`` of :mod:`steelyard_localcloud.cloud` starts one as a context manager; ``python -m
steelyard_localcloud --home DIR`` from a shell. A program reaches it with ``{**os.environ, **cloud.environment()}``:
plain boto3, plain ``cdk``. What it emulates, what it does otherwise than AWS, and what it refuses is in
``docs/explanation/local-cloud.md``.
"""
