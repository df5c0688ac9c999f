"""An endpoint that chats, with the llama.cpp container that AWS publishes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from constructs import Construct

from steelyard_constructs.chat_flags import PREFIX, check_flags_of_build, flag_of
from steelyard_constructs.declared_endpoint import check_gpu_layers
from steelyard_constructs.endpoint import Endpoint, EndpointProps
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.model_artifact import MODEL_FOLDER, HubModel, ModelArtifact
from steelyard_constructs.numeric import check_finite, check_whole
from steelyard_constructs.refusal import Refused

# More than any model has: every build of llama-server takes it for "all".
_ALL_LAYERS = 999

# What this construct sets, or what must not lie in a template that anybody with read access can see.
_OURS = frozenset({"model", "model-dir", "host", "port", "hf-repo", "hf-file", "threads", "n-gpu-layers", "gpu-layers"})
_SECRET = frozenset({"api-key", "hf-token", "ssl-key-file"})
_FLAG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")

Value = str | int | float | bool


@dataclass(frozen=True)
class ChatFlags:
    """Flags of ``llama-server``, which the container reads from ``SM_LLAMA_CPP_*``. None leaves the server's default.

    The container drops ``false``, so a flag that is on by default is turned off by another name; the switches here do
    that.

    Attributes:
        ctx_size: Tokens of context, shared by the slots.
        parallel: Slots: requests generated at the same time.
        batch_size: Tokens in one logical batch.
        ubatch_size: Tokens in one physical batch.
        n_predict: Tokens that an answer may have when the caller sets no limit.
        timeout: Longest that reading or writing a request may take, in seconds.
        threads_http: Threads that handle requests.
        flash_attn: Flash attention.
        cache_type_k: Type of the keys in the cache, such as ``q8_0``.
        cache_type_v: Type of the values in the cache.
        alias: The model's name in answers.
        chat_template: Name of a built-in chat template, instead of the model's own.
        reasoning_format: Where a model's thoughts go in answers.
        reasoning_budget: 0 turns thinking off, -1 leaves it unlimited.
        jinja: Whether the template is rendered with Jinja, which tools need.
        cont_batching: Whether requests share batches.
        context_shift: Whether old tokens are dropped when the context is full.
        load_mode: How the model is loaded.
        mmap: Whether the model is mapped rather than read, up to b10435; later builds have ``load_mode`` only.
        mlock: Whether the model is kept in memory, up to b10435 likewise.
        warmup: Whether the model is run once at the start.
        metrics: Whether ``/metrics`` is served inside the container.
        extra: Further flags by their name without dashes in front, such as ``{"cache-reuse": 256}``.
    """

    ctx_size: int | None = None
    parallel: int | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    n_predict: int | None = None
    timeout: int | None = None
    threads_http: int | None = None
    flash_attn: Literal["on", "off", "auto"] | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    alias: str | None = None
    chat_template: str | None = None
    reasoning_format: Literal["none", "deepseek", "deepseek-legacy", "auto"] | None = None
    reasoning_budget: int | None = None
    jinja: bool | None = None
    cont_batching: bool | None = None
    context_shift: bool | None = None
    load_mode: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] | None = None
    mmap: bool | None = None
    mlock: Literal[True] | None = None
    warmup: bool | None = None
    metrics: Literal[True] | None = None
    extra: Mapping[str, Value] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The container's variables for these flags.

        >>> ChatFlags(ctx_size=8192, warmup=False).environment()
        {'SM_LLAMA_CPP_CTX_SIZE': '8192', 'SM_LLAMA_CPP_NO_WARMUP': 'true'}

        Raises:
            Refused: A flag of ``extra`` cannot be passed on.
        """
        typed = {
            each.name.replace("_", "-"): getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.name != "extra"
        }
        variables: dict[str, str] = {}
        for name, value in typed.items():
            if value is False:
                variables[_variable(f"no-{name}")] = "true"
            elif value is not None:
                variables[_variable(name)] = _text(name, value)
        for name, value in self.extra.items():
            flag = name.replace("_", "-")
            if flag.removeprefix("no-") in typed:
                raise Refused(
                    f"the flag {name!r} is in extra, but ChatFlags has it: set {flag.replace('-', '_')} there"
                )
            text = _text(flag, value)
            _check_flag(flag, text)
            variables[_variable(flag)] = text
        return variables


class ChatEndpoint(Endpoint):
    """OpenAI chat from one GGUF model, with the published container as it is.

    Args:
        model: The model, in S3 with its ``file`` named, or from a hub, which turns network isolation off.
        props: Its properties. ``environment`` may hold further ``SM_LLAMA_CPP_*``.
        flags: Flags of the server.

    Raises:
        Refused: A value, or a combination, that SageMaker would refuse or with which the container would not
            serve.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.chat_endpoint import ChatEndpoint, ChatFlags
        >>> from steelyard_constructs.endpoint import EndpointProps
        >>> from steelyard_constructs.hardware import Hardware
        >>> from steelyard_constructs.images import ImageReference
        >>> from steelyard_constructs.model_artifact import ModelArtifact
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example", env=cdk.Environment(region="eu-west-1"))
        >>> chat = ChatEndpoint(
        ...     stack,
        ...     "Chat",
        ...     model=ModelArtifact(
        ...         bucket="models", key="qwen3.5-4b/0123abcd/", bytes=2_700_000_000, file="Qwen3.5-4B-Q4_K_M.gguf"
        ...     ),
        ...     props=EndpointProps(
        ...         endpoint_name="support-chat",
        ...         image=ImageReference.dlc(digest="sha256:" + "0" * 64),
        ...         hardware=Hardware.CPU,
        ...         instance_type="ml.c7i.4xlarge",
        ...     ),
        ...     flags=ChatFlags(ctx_size=16384, parallel=4),
        ... )
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        model: ModelArtifact | HubModel,
        props: EndpointProps,
        flags: ChatFlags | None = None,
    ) -> None:
        own = _source_environment(model)
        own |= (flags or ChatFlags()).environment()
        if (threads := props.threads) is not None:
            check_whole("threads", threads)
            own[_variable("threads")] = str(threads)
        if (layers := _gpu_layers(props.gpu_layers, props.hardware)) is not None:
            own[_variable("n-gpu-layers")] = str(layers)
        for name, value in props.environment.items():
            if name.startswith(PREFIX) and name not in own:
                _check_flag(flag_of(name), value)
        check_flags_of_build([*own, *props.environment], props.image.llama_cpp)
        if isinstance(model, HubModel):
            props = dataclasses.replace(props, network_isolation=False)
        super().__init__(scope, id, props=props, source=model, own_environment=own)
        if isinstance(model, HubModel):
            self._warn(
                "hub-model",
                f"endpoint {self.endpoint_name!r} fetches {model.file} from the hub repository {model.repository} each "
                "time an instance starts: network isolation is off, and what is fetched can change under the same "
                "name. Put the model into S3 for anything but trials.",
            )


def _source_environment(model: ModelArtifact | HubModel) -> dict[str, str]:
    if isinstance(model, HubModel):
        return {_variable("hf-repo"): model.repository, _variable("hf-file"): model.file}
    if model.file is None:
        raise Refused(
            f"the chat model at {model.key!r} names no file: the container would serve the first .gguf that it finds, "
            "be it a projector or another quantization; set file to the model's .gguf"
        )
    return {_variable("model"): f"{MODEL_FOLDER}/{model.file}"}


def _gpu_layers(gpu_layers: int | None, hardware: Hardware) -> int | None:
    """Return the flag's value; None where the server chooses, or has no GPU."""
    check_gpu_layers(gpu_layers, hardware, needed=False)
    if hardware is not Hardware.CUDA:
        return None
    return _ALL_LAYERS if gpu_layers == -1 else gpu_layers


def _check_flag(flag: str, value: str) -> None:
    """Refuse what the container's entrypoint would not pass on as it is meant."""
    if not _FLAG.fullmatch(flag):
        raise Refused(f"{flag!r} is not a flag of llama-server: write its name without dashes in front")
    if flag in _OURS:
        raise Refused(f"the flag {flag!r} is set by the endpoint itself; use the endpoint's own setting")
    if flag in _SECRET:
        raise Refused(
            f"the flag {flag!r} would put a secret into the template and the endpoint's description for every reader; "
            "leave it out: SageMaker checks who calls, and models belong in S3"
        )
    if value.lower() == "false":
        raise Refused(f"the flag {flag!r} is 'false', which the container drops; set 'no-{flag}' to true instead")
    if not value or "\n" in value:
        raise Refused(f"the flag {flag!r} has the value {value!r}, which the container cannot pass on in one line")


def _variable(flag: str) -> str:
    return PREFIX + flag.upper().replace("-", "_")


def _text(flag: str, value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        check_finite(f"the flag {flag!r}", value)
    return str(value)
