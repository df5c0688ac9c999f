"""Clients with a service's role: they call the emulator as that role, so that its policies count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from steelyard_localcloud.details import CloudDetails

if TYPE_CHECKING:  # it imports ministack, whose settings are made after this module is loaded
    from steelyard_localcloud.service_role import Credentials


def role_client(cloud: CloudDetails, service: str, credentials: Credentials, *, region: str | None = None) -> Any:
    """A boto3 client with the credentials of an assumed role, in the cloud's region unless another is given.

    It asks once; and S3 by path, whatever a bucket is called.
    """
    return boto3.Session().client(
        service,
        endpoint_url=cloud.url,
        region_name=region or cloud.region,
        verify=cloud.ca_bundle,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        aws_session_token=credentials.session_token,
        config=Config(retries={"max_attempts": 1}, proxies={}, s3={"addressing_style": "path"}),
    )
