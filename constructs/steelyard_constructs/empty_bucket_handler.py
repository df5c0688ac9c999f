"""Lambda function of BucketEmptier: delete every object of a bucket that is about to be deleted.

It is deployed as inline source, so it is one file of less than 4096 characters and needs boto3 only.
"""

import json
import logging
import os
import ssl
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import ClientError

TAG = "steelyard:empty-on-delete"

logging.getLogger().setLevel(logging.INFO)


def is_marked(s3: Any, bucket: str) -> bool:
    """Tell whether the bucket still carries the tag. It loses it when its removal policy changes to retain."""
    try:
        tags = s3.get_bucket_tagging(Bucket=bucket)["TagSet"]
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchBucket", "NoSuchTagSet"):
            return False
        raise
    return {"Key": TAG, "Value": "true"} in tags


def empty(s3: Any, bucket: str) -> int:
    """Delete all versions and delete markers, until the bucket lists none; the number deleted."""
    deleted = 0
    while True:
        page = s3.list_object_versions(Bucket=bucket, MaxKeys=1000)
        found = page.get("Versions", []) + page.get("DeleteMarkers", [])
        if not found:
            return deleted
        objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if answer.get("Errors"):
            raise RuntimeError(f"objects of {bucket} stay: {answer['Errors'][:3]}")
        deleted += len(objects)


def respond(event: dict[str, Any], context: Any, status: str, reason: str) -> None:
    """Tell CloudFormation the result; the bucket's name is the physical id, so a renamed bucket is emptied too."""
    bucket = event["ResourceProperties"]["BucketName"]
    body = {
        "Status": status,
        "Reason": f"{reason} (log stream {context.log_stream_name})",
        "PhysicalResourceId": bucket,
        **{key: event[key] for key in ("StackId", "RequestId", "LogicalResourceId")},
    }
    data = json.dumps(body).encode()
    request = urllib.request.Request(event["ResponseURL"], data, {"Content-Type": ""}, method="PUT")  # noqa: S310 (CloudFormation's own URL)
    # Outside AWS the endpoint may have a certificate of its own authority.
    trust = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    with urllib.request.urlopen(request, context=trust, timeout=30):  # noqa: S310
        pass


def handler(event: dict[str, Any], context: Any) -> None:
    """Handle one event of the custom resource. Create and update change nothing."""
    bucket = event["ResourceProperties"]["BucketName"]
    status, reason = "SUCCESS", f"nothing to do for {bucket}"
    try:
        if event["RequestType"] == "Delete":
            s3 = boto3.client("s3")
            if is_marked(s3, bucket):
                reason = f"{empty(s3, bucket)} objects deleted from {bucket}"
    except Exception as error:  # whatever happens, CloudFormation must not wait for an hour
        status, reason = "FAILED", f"{type(error).__name__}: {error}"
    logging.info(reason)
    respond(event, context, status, reason)
