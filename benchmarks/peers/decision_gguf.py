"""A copy of a GGUF file that llama-server takes for a decision model: the same weights, two more metadata entries.

llama-server b11434 answers ``/v1/systemone`` when ``<arch>.decision.type`` is set. With ``openjev`` it renders the
template ``tokenizer.chat_template.systemone`` with ``state``, ``instructions``, ``type`` and ``options`` (each ``key``
and ``description``), and reads the logits of the letters A, B, ... at the last token.
"""

from __future__ import annotations

import os
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT = "{{{{ {0} if {0} is string else {0} | tojson }}}}"
_STATE = "State:\n" + _TEXT.format("state")
_OPTIONS = (
    "Question: " + _TEXT.format("instructions") + "{{ '\\nOptions:\\n' }}"
    "{% for o in options %}[{{ letters[loop.index0] }}] {{ o.key }}: {% if o.description %}"
    + _TEXT.format("o.description")
    + "{% endif %}{{ '\\n' }}{% endfor %}"
)
_BEFORE = "{% set letters = '" + LETTERS + "' %}<|im_start|>user\n"
_AFTER = "{{ '\\nAnswer with the letter of the best option only.<|im_end|>\\n<|im_start|>assistant\\n' }}"

# As llama.cpp's converter writes it for OpenJev's own model, without the empty thinking block of that model.
STATE_FIRST = _BEFORE + _STATE + "\n\n" + _OPTIONS + _AFTER
# The same words with the state last, so that llama-server's own prompt cache can keep the question and its options.
OPTIONS_FIRST = _BEFORE + _OPTIONS + "{{ '\\n' }}" + _STATE + "{{ '\\n' }}" + _AFTER
TEMPLATES = {"state-first": STATE_FIRST, "options-first": OPTIONS_FIRST}


def write_decision_copy(model: Path, target: Path, *, template: str) -> None:
    """Copy ``model`` to ``target`` with the decision type ``openjev`` and ``template``; atomic.

    Tensors are copied as they are, byte for byte.
    """
    reader = GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    unfinished = target.with_name(target.name + ".part")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(unfinished, arch=architecture)
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=part)
    writer.add_string(f"{architecture}.decision.type", "openjev")
    writer.add_array("tokenizer.chat_templates", ["systemone"])
    writer.add_string("tokenizer.chat_template.systemone", template)
    for tensor in reader.tensors:
        writer.add_tensor_info(
            tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()
    os.replace(unfinished, target)
