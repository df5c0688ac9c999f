"""S3 writes encrypted with ``aws:kms`` and no key named: AWS takes the account's own key, ministack refuses them.

The CDK uploads its assets that way into the bucket that its bootstrap made.
"""

from __future__ import annotations

import uuid
from typing import Any

from ministack.core.responses import get_account_id, get_region
from ministack.services import s3

_ALGORITHM = "x-amz-server-side-encryption"
_KEY = "x-amz-server-side-encryption-aws-kms-key-id"


def extend() -> None:
    """Name the account's key where a write names none."""
    resolve = s3._resolve_sse_write_headers

    def resolve_with_key(headers: dict[str, str], bucket: str) -> Any:
        if headers.get(_ALGORITHM) == "aws:kms" and not headers.get(_KEY):
            headers = {**headers, _KEY: account_key()}
        return resolve(headers, bucket)

    s3._resolve_sse_write_headers = resolve_with_key


def account_key() -> str:
    """ARN of the key ``alias/aws/s3`` of the caller's account and region."""
    account, region = get_account_id(), get_region()
    return f"arn:aws:kms:{region}:{account}:key/{uuid.uuid5(uuid.NAMESPACE_URL, f'aws/s3/{account}/{region}')}"
