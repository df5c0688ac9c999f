"""Chat templates of the shapes that published models have, written anew, and Jinja's own rendering of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

MISTRAL = """{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if loop.last and system is defined %}{{- '[INST] ' + system + '\n\n' + message.content + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{%- endif %}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
    {%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}{%- endif %}
{%- endfor %}"""

# As Qwen3: the thoughts of earlier turns go, the last turn keeps its own, thinking can be switched off by a variable.
THINKING = """{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == 'user' and message.content is string
           and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
            {{- '<|im_start|>assistant\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

# As DeepSeek R1's distillates: the last system text wins, and a reasoning block is always opened.
R1 = """{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- set ns.system = message['content'] %}{%- endif %}
{%- endfor %}
{{- bos_token ~ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '<|User|>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {{- '<|Assistant|>' + content + '<|end_of_sentence|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}"""

# As Nemotron Nano: switches in the text, which are taken out of it; an open block otherwise.
SWITCHES = """{%- set ns = namespace(think=true) %}
{%- for message in messages %}
    {%- if message['role'] in ['user', 'system'] %}
        {%- if '/think' in message['content'] %}{%- set ns.think = true %}
        {%- elif '/no_think' in message['content'] %}{%- set ns.think = false %}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- set rest = messages %}
{{- '<SPECIAL_10>System\n' }}
{%- if messages[0]['role'] == 'system' %}
    {{- (messages[0]['content'] | default('', true)).replace('/think', '').replace('/no_think', '').strip() }}
    {%- set rest = messages[1:] %}
{%- endif %}
{{- '\n\n' }}
{%- for message in rest %}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'user' %}
        {{- '<SPECIAL_11>User\n' + content.replace('/think', '').replace('/no_think', '').strip() + '\n' }}
    {%- elif message['role'] == 'assistant' %}
        {%- if content and '</think>' in content %}
            {%- set content = (content.split('</think>')[1] | default('', true)).strip() %}
        {%- endif %}
        {{- '<SPECIAL_11>Assistant\n' + content.strip() + '\n<SPECIAL_12>\n\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<SPECIAL_11>Assistant\n' }}
    {%- if ns.think is false %}{{- '<think></think>' }}{%- else %}{{- '<think>\n\n' }}{%- endif %}
{%- endif %}"""

# As gpt-oss: the prompt ends before the channel that the model chooses.
HARMONY = """{%- macro system() %}{{ 'You are a model.\nCurrent date: ' + strftime_now('%Y-%m-%d') }}{%- endmacro %}
{{- '<|start|>system<|message|>' + system() + '<|end|>' }}
{%- if messages[0].role in ['system', 'developer'] %}
    {%- set developer = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set developer = '' %}{%- set rest = messages %}{%- endif %}
{%- if developer %}
    {{- '<|start|>developer<|message|># Instructions\n\n' }}{{- developer }}{{- '<|end|>' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'assistant' %}
        {%- if '<|channel|>analysis<|message|>' in message.content %}
            {{- raise_exception('Put thoughts into the field thinking: ' + message.content) }}
        {%- endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' }}{{- message.content }}{{- '<|end|>' }}
    {%- elif message.role == 'user' %}{{- '<|start|>user<|message|>' }}{{- message.content }}{{- '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{%- endif %}"""

# As Command R7B: blocks with English names, and a header before answers that the prompt leaves to the model.
COMMAND = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role | lower == 'system' %}<|TURN|><|SYSTEM|>{{ message.content }}<|END|>
    {%- elif message.role | lower == 'user' %}<|TURN|><|USER|>{{ message.content }}<|END|>
    {%- else %}<|TURN|><|CHATBOT|><|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|><|END|>{%- endif %}
{%- endfor %}<|TURN|><|CHATBOT|>"""

# As MiniMax M2: a macro shows text, and an open block ends the prompt.
MACRO = """{%- macro shown(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}{%- for item in content -%}{{- item.text }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set system = none -%}{%- set rest = messages -%}
{%- if messages and messages[0].role == 'system' -%}
    {%- set system = messages[0] -%}{%- set rest = messages[1:] -%}
{%- endif -%}
{{- ']~b]system' ~ '\n' ~ (shown(system.content) if system else 'You are helpful.') ~ '[e~[\n' }}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- set content = shown(message.content) -%}
        {%- if '</think>' in content -%}
            {%- set content = content.split('</think>')[-1].strip('\n') -%}
        {%- endif -%}
        {{- ']~b]ai' ~ '\n' ~ content ~ '[e~[\n' }}
    {%- elif message.role == 'user' -%}{{- ']~b]user' ~ '\n' ~ shown(message.content) ~ '[e~[' ~ '\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ']~b]ai' ~ '\n' ~ '<think>' ~ '\n' }}{%- endif -%}"""

# As Phi: no white space control at all, one long line.
PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + "
    "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + "
    "'<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

# As SmolLM: a default system text where the conversation brings none.
DEFAULTED = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# As Granite: the conversation is changed before it is shown, and roles stand between markers.
CHANGED = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024." %}{%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
{%- endfor %}"""

# As Gemma 4: thoughts are channels, and an empty one ends the prompt.
CHANNELS = """{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.result = ns.result + (part.split('<|channel>')[0] if '<|channel>' in part else part) -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{{ bos_token }}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\n' }}
    {%- if role == 'model' -%}{{- without_thoughts(message['content']) -}}
    {%- else -%}{{- message['content'] | trim -}}{%- endif -%}
    {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\n' -}}
    {%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
{%- endif -%}"""

# Not of any model: every operation on text that templates have.
EVERYTHING = r"""{%- for message in messages %}
{{ message.role | title }}: {{ message.content | upper ~ message.content.lower() | capitalize }}
{{ message.content.title() }}|{{ message.content.isdigit() }}
{{ message.content | replace('a', '<b>') | replace('', '-', 3) }}|{{ message.content.replace(' ', '_', 2) }}
{{ message.content.split() | join(', ') }}|{{ message.content.rsplit(None, 1) | join('/') }}
{{ message.content.split(' ', 1)[-1] }}|{{ message.content.rsplit('\n')[0] ~ message.content.partition('a') | join }}
{{ message.content.rpartition(' ')[2] }}|{{ message.content.splitlines() | join('<br>') | indent(2, true) }}
{{ (message.content ~ '\n\nx') | indent(3) }}|{{ message.content | indent('> ', blank=true) }}
{{ message.content[:3] ~ message.content[-3:] ~ message.content[::2] }}|{{ message.content | reverse }}
{{ message.content | first | default('') }}{{ message.content | last }}{{ message.content | list | join('.') }}
{{ message.content.strip('x \n') * 2 }}|{{ message.content.removeprefix('a').removesuffix('b') | trim('c') }}
{{ message | tojson }}|{{ [message.content, 1, none, true, {'k': message.content}] | tojson(indent=2) }}
{{ message.content | tojson(ensure_ascii=true) }}|{{ (message.content ~ '<i>' ~ message.content) | string }}
{{ messages | map(attribute='content') | map('trim') | join(' + ') }}|{{ messages | join('&', attribute='role') }}
{{ message.content | length }}|{{ message.content.count('a') }}|{{ message.content.find(' ') ~ message.content | int }}
{% filter upper %}f {{ message.content }}{% endfilter %}|{% set held %}h {{ message.content }}{% endset %}{{ held }}
{% for character in message.content %}{{ character if loop.index0 < 4 }}{% endfor %}
{{ (message.content ~ 'ΑΣ ' ~ message.content) | lower }}|{{ dict(a=message.content).a }}|{{ [message.content] }}
{%- endfor %}"""

SHAPES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "thinking": THINKING,
    "r1": R1,
    "switches": SWITCHES,
    "harmony": HARMONY,
    "command": COMMAND,
    "macro": MACRO,
    "phi": PHI,
    "defaulted": DEFAULTED,
    "changed": CHANGED,
    "channels": CHANNELS,
}
VARIABLES: Mapping[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "enable_thinking": False,
    "thinking": False,
    "tools": None,
    "documents": None,
}


def rendered_by_jinja(
    source: str, turns: Sequence[tuple[str, str]], *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """The text that Jinja makes of the messages themselves, as other programs render chat templates."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": date(2024, 7, 26).strftime}
    messages = [{"role": role, "content": content} for role, content in turns]
    shown = {**VARIABLES, "messages": messages, "add_generation_prompt": add_generation_prompt} | variables
    return environment.from_string(source).render(shown)
