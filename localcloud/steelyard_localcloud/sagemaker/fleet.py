"""A fleet: one production variant of one endpoint configuration, as a running container or process.

SageMaker starts as many instances as the variant asks for. The local cloud counts them and runs one.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ministack.core.responses import get_account_id, get_region

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.options import Options
from steelyard_localcloud.ports import free_port
from steelyard_localcloud.sagemaker import container, images, interfaces, metrics, model_data, podman, stand_in, usage
from steelyard_localcloud.sagemaker.launch import Launch
from steelyard_localcloud.sagemaker.logs import EndpointLog
from steelyard_localcloud.sagemaker.models import container_of, role_of
from steelyard_localcloud.sagemaker.process import Process
from steelyard_localcloud.wire import Parameters

_DEFAULT_DOWNLOAD_S = 3600.0
_DEFAULT_STARTUP_S = 600.0
_PING_EVERY_S = 0.2
_WATCH_EVERY_S = 0.2
_RESTART_EVERY_S = 1.0
_REPORT_EVERY_S = 15.0
_DRAIN_S = 65.0

_numbers = itertools.count(1)


class Fleet:
    """The process behind a variant.

    Made within a request's account and region, with what the model and the configuration said at that moment: both may
    be deleted while the endpoint serves.

    Args:
        endpoint: The endpoint's name.
        config: The endpoint configuration.
        model: The variant's model.
        cloud: Where the emulator's S3 is.
        options: The local cloud's.
    """

    def __init__(
        self, endpoint: str, config: Parameters, model: Parameters, *, cloud: CloudDetails, options: Options
    ) -> None:
        self.endpoint = endpoint
        self.config_name: str = config["EndpointConfigName"]
        self.variant: Parameters = config["ProductionVariants"][0]
        self._container = container_of(model)
        self._isolated: bool = model.get("EnableNetworkIsolation", False)
        self._network: Parameters | None = model.get("VpcConfig")
        self._interfaces: tuple[str, ...] = ()
        self._role = role_of(model)
        self._image = images.parse_image(self._container["Image"])
        self._cloud = cloud
        self._options = options
        self._number = next(_numbers)
        self._launches = itertools.count(1)
        self._folder = options.home / "endpoints" / endpoint / str(self._number)
        self._process: Process | None = None
        self._starting = threading.Lock()
        self._in_flight = 0
        self._idle = threading.Condition()
        self._retired = threading.Event()

    @property
    def name(self) -> str:
        """The variant's name."""
        name: str = self.variant["VariantName"]
        return name

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Its instance types, first choice first."""
        pools = sorted(self.variant.get("InstancePools", []), key=lambda pool: int(pool["Priority"]))
        return tuple(pool["InstanceType"] for pool in pools) or (self.variant["InstanceType"],)

    @property
    def placed(self) -> str:
        """The instance type that it runs on: the first choice of which there is capacity, or would be."""
        there = [name for name in self.instance_types if name not in self._options.types_without_capacity]
        return (there or list(self.instance_types))[0]

    def check_may_read(self, alarms: tuple[str, ...]) -> None:
        """Refuse alarms that the execution role may not read.

        The developer guide demands it ("Auto-Rollback Configuration and Monitoring"); the words are ours.

        Raises:
            ServiceError: With those alarms.
        """
        where = f"arn:aws:cloudwatch:{get_region()}:{get_account_id()}:alarm:"
        hidden = [name for name in alarms if not self._role.allows("cloudwatch:DescribeAlarms", where + name)]
        if hidden:
            raise ServiceError(
                f"The role '{self._role.arn}' does not have cloudwatch:DescribeAlarms permission for the auto-rollback "
                f"alarm(s): {', '.join(hidden)}."
            )

    @property
    def port(self) -> int:
        """Port of the process. Changes when it is started anew."""
        return self._running().port

    @property
    def invocation_path(self) -> str:
        """Path that invocations are posted to."""
        return self._running().launch.invocation_path

    @property
    def log_stream(self) -> tuple[str, str]:
        """Log group and stream."""
        return self._log.group, self._log.stream

    def note(self, line: str) -> None:
        """Write a line of the local cloud's own into the endpoint's log."""
        self._log.note(line)

    def deployed_images(self) -> list[Parameters]:
        """``DeployedImages`` of the variant."""
        return [
            {
                "SpecifiedImage": self._image.uri,
                "ResolvedImage": self._resolved,
                "ResolutionTime": self._resolved_at,
            }
        ]

    def start(self, *, cancelled: Callable[[], bool]) -> None:
        """Pull, download, start, and wait for the health check.

        Raises:
            ServiceError: With the reason that SageMaker would give; nothing is left running.
        """
        self._log = EndpointLog(
            self.endpoint,
            f"{self.name}/i-{self._number:017x}",
            path=self._options.home / "logs" / f"{self.endpoint}-{self._number}.log",
            role=self._role,
        )
        try:
            self._check_capacity()
            self._interfaces = interfaces.make(self.endpoint, self._network)
            self._pull()
            self._check_processor()
            self._download()
            self._launch()
            self._await_health(cancelled)
        except BaseException as error:
            self._log.note(f"the deployment failed: {error}")
            self.stop()
            raise
        for duty in (self._keep_alive, self._report):
            threading.Thread(target=contextvars.copy_context().run, args=(duty,), daemon=True).start()

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.exit_status() is None

    @property
    def in_flight(self) -> int:
        """Requests that have begun and not ended."""
        return self._in_flight

    def enter(self) -> None:
        """A request begins: the process is kept until it leaves."""
        with self._idle:
            self._in_flight += 1

    def leave(self) -> None:
        """A request has ended."""
        with self._idle:
            self._in_flight -= 1
            self._idle.notify_all()

    def retire(self) -> None:
        """Let requests in flight finish, then stop."""
        with self._idle:
            self._idle.wait_for(lambda: self._in_flight == 0, timeout=_DRAIN_S)
        self.stop()

    def stop(self) -> None:
        """Stop the container or process and remove its model files. The log file stays."""
        with self._starting:
            self._retired.set()
            if self._process is not None:
                self._process.stop()
        interfaces.release(self._interfaces, after_s=self._options.interfaces_linger_s)
        self._log.close()
        _remove(self._folder)
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()

    def _pull(self) -> None:
        self._resolved, self._resolved_at = images.resolve(self._image), time.time()
        images.check_pull(self._image, self._role)
        self._real = images.is_real(self._image)
        if self._real:
            began = time.monotonic()
            podman.pull(self._resolved, self._cloud, self._role.assume("SageMaker"))
            self._log.note(f"pulled {self._resolved} in {time.monotonic() - began:.1f} s")

    def _check_capacity(self) -> None:
        if self.placed in self._options.types_without_capacity:
            raise ServiceError(
                "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. Please "
                "retry using a different ML instance type or after some time."
            )

    def _check_processor(self) -> None:
        """A published container ends at once on processors that it was not built for."""
        built = self._image.published_architecture
        wrong = [name for name in self.instance_types if built not in (None, architecture_of(name))]
        if wrong:
            self._log.note(f"exec format error: {self._image.repository} is for {built}, and {wrong[0]} is not")
            raise self._unhealthy()

    def _download(self) -> None:
        self._model_folder: Path | None = None
        data = model_data.model_data_of(self._container)
        self._folder.mkdir(parents=True)
        if data is None:
            return
        self._model_folder = self._folder / "model"
        self._model_folder.mkdir()
        model_data.download(
            data,
            self._model_folder,
            role=self._role,
            cloud=self._cloud,
            timeout_s=self.variant.get("ModelDataDownloadTimeoutInSeconds", _DEFAULT_DOWNLOAD_S),
        )
        self._log.note(f"model data of {data.url} is in {self._model_folder}")

    def _launch(self) -> None:
        port = free_port()
        launch = self._plan(port)
        for line in launch.notes:
            self._log.note(line)
        self._process = Process(launch, port=port, folder=self._folder, write=self._log.write)

    def _plan(self, port: int) -> Launch:
        variables = self._container.get("Environment", {})
        if not self._real:
            return stand_in.plan(
                self._image, variables, model_folder=self._model_folder, port=port, options=self._options
            )
        return container.plan(
            self._resolved,
            variables,
            name=f"{self.endpoint}-{self._number}-{next(self._launches)}",
            folder=self._folder,
            model_folder=self._model_folder,
            isolated=self._isolated,
            cloud=self._cloud,
            options=self._options,
        )

    def _await_health(self, cancelled: Callable[[], bool]) -> None:
        process = self._running()
        wanted = self.variant.get("ContainerStartupHealthCheckTimeoutInSeconds", _DEFAULT_STARTUP_S)
        deadline = time.monotonic() + min(wanted, self._options.longest_startup_s)
        while time.monotonic() < deadline and not cancelled():
            if (status := process.exit_status()) is not None:
                self._log.note(f"the {self._what} ended with status {status} before it was healthy")
                break
            if process.healthy():
                return
            time.sleep(_PING_EVERY_S)
        raise self._unhealthy()

    def _unhealthy(self) -> ServiceError:
        return ServiceError(
            f"The primary container for production variant {self.name} did not pass the ping health check. Please "
            f"check CloudWatch logs for this endpoint ({self._log.group}, {self._log.stream})."
        )

    def _report(self) -> None:
        """Publish what the process uses, as an instance does."""
        earlier = None
        while True:
            taken = usage.sample(self._running().pid)
            if taken is not None:
                metrics.record_usage(
                    self.endpoint,
                    self.name,
                    cpu_percent=usage.cpu_percent(earlier or taken, taken),
                    memory_percent=usage.memory_percent(taken),
                )
            earlier = taken
            if self._retired.wait(_REPORT_EVERY_S):
                return

    @property
    def _what(self) -> str:
        return "container" if self._real else "process"

    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"the fleet of endpoint {self.endpoint} has not been started")
        return self._process

    def _keep_alive(self) -> None:
        """SageMaker replaces a container that ends; so is this process."""
        while not self._retired.wait(_WATCH_EVERY_S):
            with self._starting:
                if self.alive() or self._retired.is_set():
                    continue
                ended = self._running()
                self._log.note(f"the {self._what} ended with status {ended.exit_status()}; it is started anew")
                ended.stop()
                self._launch()
            self._retired.wait(_RESTART_EVERY_S)


def architecture_of(instance_type: str) -> str:
    """Instruction set of an instance type: that of a ``g`` behind the generation's number is Graviton's."""
    return "arm64" if re.match(r"ml\.[a-z]+[0-9]+g[a-z]*\.", instance_type) else "x86_64"


def _remove(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
