"""Comparison of a model's files with the claims of its catalogue entry."""

from __future__ import annotations

from pathlib import Path

from steelyard.models import storage
from steelyard.models.catalogue import CatalogueEntry, ModelFile
from steelyard.models.gguf_metadata import GgufFacts, read_facts, tensor_type_of
from steelyard.models.template_review import review
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import model_files

_KIND_OF_ROLE = {"weights": "model", "shard": "model", "mmproj": "mmproj"}


def check_claims(entry: CatalogueEntry) -> tuple[GgufFacts, list[str]]:
    """Compare a pulled model with what its entry claims.

    Returns:
        What the model's (first) file says of itself, and warnings about its chat template.

    Raises:
        CommandError: A claim is wrong, a shard is missing, or another model lies among the files. Each fault is named.
    """
    _require_one_model(entry)
    facts = {}
    for file in entry.files:
        if file.role in _KIND_OF_ROLE:
            facts[file.name] = read_facts(storage.file_path(entry, file))
            _require_kind(file, facts[file.name])
    main = facts[entry.file.name]
    # The tensors of a split model are spread over all its files.
    types: dict[str, int] = {}
    for file in entry.files:
        if file.role in ("weights", "shard"):
            for name, count in facts[file.name].tensor_types.items():
                types[name] = types.get(name, 0) + count
    if faults := _faults(entry, main, types):
        raise CommandError(
            f"{main.path} is not what the catalogue claims of {entry.name}:\n" + "\n".join(f"- {f}" for f in faults),
            code=ExitCode.MODEL,
            hint="The file is the pinned one, so it is the catalogue entry that is wrong: correct [claims].",
        )
    warnings = [f"{main.path.name}: {warning}" for warning in review(main.chat_template)]
    return main, warnings


def show_file(path: Path) -> tuple[GgufFacts, list[str]]:
    """Read what a model says of itself that is in no catalogue.

    Args:
        path: A GGUF file, the first of several, or a folder that holds one model.

    Returns:
        What its (first) file says, and warnings about its chat template.

    Raises:
        CommandError: It is not there, or is not a whole GGUF file.
    """
    try:
        first = model_files.resolve(path).first
    except model_files.ModelFileError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    facts = read_facts(first)
    return facts, [f"{first.name}: {warning}" for warning in review(facts.chat_template)]


def _require_one_model(entry: CatalogueEntry) -> None:
    """The folder holds this model, whole, and no other: a server of the folder would have to guess."""
    folder = storage.model_folder(entry)
    known = {file.name for file in entry.files}
    if strangers := sorted(path.name for path in folder.glob("*.gguf") if path.name not in known):
        raise CommandError(
            f"{folder} holds {', '.join(strangers)}, which is no file of {entry.name}; "
            "which one is the model would have to be guessed",
            code=ExitCode.MODEL,
            hint="Remove it: only the files of the catalogue belong there.",
        )
    try:
        found = model_files.resolve(folder)
    except model_files.ModelFileError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    expected = [path for path in (storage.file_path(entry, file) for file in entry.files) if _is_model(entry, path)]
    if list(found.shards) != sorted(expected):
        raise CommandError(
            f"the catalogue lists {len(expected)} GGUF files for {entry.name}, and the model in {folder} has "
            f"{len(found.shards)}: {', '.join(path.name for path in found.shards)}",
            code=ExitCode.MODEL,
        )


def _is_model(entry: CatalogueEntry, path: Path) -> bool:
    return any(file.name == path.name and file.role in ("weights", "shard") for file in entry.files)


def _require_kind(file: ModelFile, facts: GgufFacts) -> None:
    if facts.kind != _KIND_OF_ROLE[file.role]:
        raise CommandError(
            f"{facts.path} has the role {file.role} in the catalogue, and says that it is of the type {facts.kind!r}",
            code=ExitCode.MODEL,
        )


def _faults(entry: CatalogueEntry, facts: GgufFacts, types: dict[str, int]) -> list[str]:
    claims, faults = entry.claims, []
    for what, claimed, found in (
        ("architecture", claims.architecture, facts.architecture),
        ("quantization", claims.quantization, facts.quantization),
        ("context_length", claims.context_length, facts.context_length),
        ("tokenizer", claims.tokenizer, facts.tokenizer),
        ("chat_template_sha256", claims.chat_template_sha256, facts.chat_template_sha256),
    ):
        if claimed is not None and claimed != found:
            faults.append(f"{what} is {found!r} in the file, and {claimed!r} is claimed")
    if facts.vocabulary == 0:
        faults.append("the file carries no tokenizer (tokenizer.ggml.tokens)")
    if claims.quantization is not None and (wanted := tensor_type_of(claims.quantization, types)) not in types:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        faults.append(f"{claims.quantization} is claimed, and none of the tensors is {wanted}: {listed}")
    return faults
