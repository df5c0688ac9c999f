"""The administrator: an IAM user whose key the local cloud hands out, and no other key that may do everything.

Left to itself, ministack takes ``test``, every account number and requests without a signature for the root user, and
checks no signature of the root user. A test that forgot its credentials would then prove nothing about IAM.
"""

from __future__ import annotations

from ministack.core import iam_evaluator
from ministack.core.responses import request_scope
from ministack.services import iam, sts

from steelyard_localcloud.details import CloudDetails

USER_NAME = "local-cloud-administrator"

_POLICY = "arn:aws:iam::aws:policy/AdministratorAccess"


def make_administrator(cloud: CloudDetails) -> None:
    """Make the user of ``cloud``'s key, and let no caller be root."""
    for module in (iam_evaluator, sts):
        module.is_root_access_key = lambda _access_key_id: False
    with request_scope(cloud.account, cloud.region):
        iam._create_user({"UserName": [USER_NAME]})
        iam._users[USER_NAME]["AttachedPolicies"].append(_POLICY)
        iam._access_keys[cloud.access_key_id] = {
            "UserName": USER_NAME,
            "AccessKeyId": cloud.access_key_id,
            "SecretAccessKey": cloud.secret_access_key,
            "Status": "Active",
            "CreateDate": iam._now(),
        }
