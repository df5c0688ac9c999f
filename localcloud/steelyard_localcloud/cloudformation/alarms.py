"""``AWS::CloudWatch::Alarm`` with ``Metrics``; ministack keeps those with one metric, and ours evaluates both."""

from __future__ import annotations

from typing import Any

from ministack.services import cloudwatch
from ministack.services.cloudformation import provisioners

from steelyard_localcloud import shapes
from steelyard_localcloud.cloudwatch import alarms
from steelyard_localcloud.wire import Parameters

_TYPE = "AWS::CloudWatch::Alarm"


def extend() -> None:
    """Let ministack's handlers take metric math."""
    plain = provisioners._cw_metric_alarm_put

    def put(name: str, properties: Parameters) -> Any:
        if not properties.get("Metrics"):
            alarms.check(properties)
            return plain(name, properties)
        given = {key: value for key, value in properties.items() if key != "Tags"}
        parameters = shapes.from_template("cloudwatch", "PutMetricAlarm", {**given, "AlarmName": name})
        shapes.validate("cloudwatch", "PutMetricAlarm", parameters)
        alarms.put(parameters)
        cloudwatch.cloudformation_set_metric_alarm_tags(name, properties.get("Tags") or [])
        return name, {"Arn": cloudwatch._alarms[name]["AlarmArn"]}

    provisioners._cw_metric_alarm_put = put
