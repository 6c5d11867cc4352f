# SPDX-License-Identifier: BSD-3-Clause
"""What an index may say of a tensor's file (D2): one table, for the package for Python and for the command."""

LISTED = "model.safetensors.index.json"
TENSOR = "w"
# The name of a file, as JSON; whether it may be one. Those that may are of files in the index's folder, or below.
NAMES = {
    '"m.safetensors"': True, '"a b.safetensors"': True, '"..m.safetensors"': True, '"m..safetensors"': True,
    '".m.safetensors"': True, '"...safetensors"': True, '"deep/m.safetensors"': True, '"a/b/c.safetensors"': True,
    '"a/..b/c.safetensors"': True, '"\\u00e9.safetensors"': True, '"\\ud83d\\ude00.safetensors"': True,
    '"a%2Fb.safetensors"': True, '"a?b#c.safetensors"': True,
    '""': False, '"."': False, '".."': False, '"/"': False, '"/m.safetensors"': False, '"//host/m.safetensors"': False,
    '"../m.safetensors"': False, '"deep/../m.safetensors"': False, '"deep/../../m.safetensors"': False,
    '"deep/.."': False, '"./m.safetensors"': False, '"deep/./m.safetensors"': False, '"deep//m.safetensors"': False,
    '"m.safetensors/"': False, '"m.safetensors\\u0000"': False, '"\\u0000"': False, '"m\\ud800.safetensors"': False,
    '"\xff.safetensors"': False, '"\xc3\xa9.safetensors"': True,  # bytes of the file: see index()
    'null': False, '1': False, 'true': False, '["m.safetensors"]': False, '{"a": "m.safetensors"}': False,
}


def index(name):
    """The bytes of an index of one tensor."""
    return f'{{"weight_map": {{"{TENSOR}": {name}}}}}'.encode("latin1")


def file_of(name):
    """The name that is meant, of those that may be one."""
    import json

    return json.loads(name.encode("latin1"))
