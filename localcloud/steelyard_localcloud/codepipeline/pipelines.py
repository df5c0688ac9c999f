"""CodePipeline's operations, and the resource that declares a pipeline."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from ministack.core.responses import get_account_id, get_region

from steelyard_localcloud import shapes
from steelyard_localcloud.cloudformation.handler import Handler, Provisioned, physical_name
from steelyard_localcloud.codepipeline.definition import from_properties
from steelyard_localcloud.codepipeline.execution import ActionState, Execution, Surroundings
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.wire import Parameters

_TYPE = "AWS::CodePipeline::Pipeline"
_CLOSE_S = 40.0
_LONGEST_NAME = 100


@dataclass
class _Pipeline:
    definition: Parameters
    version: int = 1
    executions: list[Execution] = field(default_factory=list)
    locks: dict[str, threading.Lock] = field(default_factory=dict)

    def lock_stages(self) -> None:
        for stage in self.definition["stages"]:
            self.locks.setdefault(stage["name"], threading.Lock())


class Pipelines:
    """All pipelines of one local cloud, by account, region and name.

    Args:
        surroundings: What their executions use.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._pipelines: dict[tuple[str, str, str], _Pipeline] = {}
        self._operations = {
            "GetPipeline": self._get,
            "GetPipelineExecution": self._get_execution,
            "GetPipelineState": self._get_state,
            "PutApprovalResult": self._put_approval,
            "StartPipelineExecution": self._start,
            "StopPipelineExecution": self._stop,
        }

    def perform(self, operation: str, parameters: Parameters) -> Parameters:
        """Perform an operation.

        Raises:
            ServiceError: As AWS refuses it, or it is not emulated.
        """
        if operation not in self._operations:
            raise not_emulated(f"{operation} of CodePipeline")
        shapes.validate("codepipeline", operation, parameters)
        return self._operations[operation](parameters)

    def handlers(self) -> list[Handler]:
        """The resource's handler."""
        return [
            Handler(
                type=_TYPE,
                create=self._create,
                update=self._update,
                delete=self._delete,
                replacing=("Name",),
                name_property="Name",
                tagged=True,
            )
        ]

    def close(self) -> None:
        """Stop all executions and wait for their ends."""
        running = [each for pipeline in self._pipelines.values() for each in pipeline.executions]
        for execution in running:
            execution.stop()
        for execution in running:
            execution.join(_CLOSE_S)

    def _create(self, logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        name = properties.get("Name") or physical_name(logical_id, stack_name, longest=_LONGEST_NAME)
        pipeline = _Pipeline(from_properties(properties, name=name))
        pipeline.lock_stages()
        self._pipelines[_key(name)] = pipeline
        return name, {"Version": "1"}

    def _update(self, physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
        pipeline = self._found(physical_id)
        pipeline.definition = from_properties(new, name=physical_id)
        pipeline.version += 1
        pipeline.lock_stages()
        return physical_id, {"Version": str(pipeline.version)}

    def _delete(self, physical_id: str, _properties: Parameters) -> None:
        pipeline = self._pipelines.pop(_key(physical_id), None)
        for execution in pipeline.executions if pipeline is not None else ():
            execution.stop()

    def _found(self, name: str) -> _Pipeline:
        pipeline = self._pipelines.get(_key(name))
        if pipeline is None:
            raise ServiceError(
                f"Account '{get_account_id()}' does not have a pipeline with name '{name}'",
                code="PipelineNotFoundException",
            )
        return pipeline

    def _execution(self, name: str, identifier: str) -> Execution:
        for each in self._found(name).executions:
            if each.id == identifier:
                return each
        raise ServiceError(
            f"No execution {identifier} of the pipeline {name}", code="PipelineExecutionNotFoundException"
        )

    def _get(self, parameters: Parameters) -> Parameters:
        found = self._found(parameters["name"])
        return {"pipeline": {**found.definition, "version": found.version}}

    def _start(self, parameters: Parameters) -> Parameters:
        if unknown := sorted(set(parameters) - {"name", "clientRequestToken"}):
            raise not_emulated(f"{', '.join(unknown)} of StartPipelineExecution")
        pipeline = self._found(parameters["name"])
        execution = Execution(pipeline.definition, pipeline.locks, self._around)
        pipeline.executions.append(execution)
        return {"pipelineExecutionId": execution.id}

    def _stop(self, parameters: Parameters) -> Parameters:
        if not parameters.get("abandon"):
            raise not_emulated("StopPipelineExecution without abandon")
        execution = self._execution(parameters["pipelineName"], parameters["pipelineExecutionId"])
        if execution.status != "InProgress":
            raise ServiceError(f"The execution is {execution.status}", code="PipelineExecutionNotStoppableException")
        execution.stop()
        return {"pipelineExecutionId": execution.id}

    def _get_execution(self, parameters: Parameters) -> Parameters:
        name = parameters["pipelineName"]
        execution = self._execution(name, parameters["pipelineExecutionId"])
        told = {"pipelineName": name, "pipelineVersion": self._found(name).version}
        return {"pipelineExecution": {**told, "pipelineExecutionId": execution.id, "status": execution.status}}

    def _get_state(self, parameters: Parameters) -> Parameters:
        pipeline = self._found(parameters["name"])
        stages = [self._stage_state(pipeline, each) for each in pipeline.definition["stages"]]
        return {"pipelineName": parameters["name"], "pipelineVersion": pipeline.version, "stageStates": stages}

    def _stage_state(self, pipeline: _Pipeline, stage: Parameters) -> Parameters:
        """A stage, as the execution left it that was in it last."""
        name = stage["name"]
        told: Parameters = {
            "stageName": name,
            "actionStates": [{"actionName": each["name"]} for each in stage["actions"]],
        }
        for execution in reversed(pipeline.executions):
            if (states := execution.states.get(name)) is not None:
                told["latestExecution"] = {
                    "pipelineExecutionId": execution.id,
                    "status": execution.stage_status[name],
                }
                told["actionStates"] = [_action_state(each["name"], states) for each in stage["actions"]]
                break
        return told

    def _put_approval(self, parameters: Parameters) -> Parameters:
        for execution in self._found(parameters["pipelineName"]).executions:
            states = execution.states.get(parameters["stageName"], {})
            state = states.get(parameters["actionName"])
            if state is not None and state.token is not None and state.status == "InProgress":
                execution.approve(
                    parameters["stageName"],
                    parameters["actionName"],
                    token=parameters["token"],
                    **parameters["result"],
                )
                return {"approvedAt": time.time()}
        raise ServiceError(
            f"The action {parameters['actionName']} of {parameters['stageName']} does not wait",
            code="ActionNotFoundException",
        )


def _action_state(name: str, states: dict[str, ActionState]) -> Parameters:
    return {"actionName": name, "latestExecution": states[name].shape()} if name in states else {"actionName": name}


def _key(name: str) -> tuple[str, str, str]:
    return get_account_id(), get_region(), name
