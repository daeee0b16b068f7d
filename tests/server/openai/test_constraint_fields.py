"""The constraint on an answer, in every spelling that clients use."""

from typing import Any

import pytest
from fake_client import PretendClient, http, pretend_app

from quire.params.structured import StructuredSpec
from quire.records import GrammarBackend, PluginInfo, Registry

KINDS = frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"))
BACKEND = GrammarBackend(name="g", kinds=KINDS, build=lambda context: None)  # type: ignore[arg-type, return-value]
REGISTRY = Registry(records={"quire_grammar_backends": {"g": BACKEND}})
SCHEMA = {"type": "object", "properties": {"ä": {"type": "integer"}}}
AS_JSON = '{"type":"object","properties":{"ä":{"type":"integer"}}}'
TAG = {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}

FORMAT = {"type": "structural_tag", "format": {"type": "const_string", "value": "ä"}}
AS_TAG = '{"type":"structural_tag","format":{"type":"const_string","value":"ä"}}'


def of(kind: str, source: str, **more: Any) -> StructuredSpec:
    return StructuredSpec(kind=kind, source=source, **more)


SPELLINGS: list[tuple[dict[str, Any], StructuredSpec]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        of("json_schema", AS_JSON),
    ),
    ({"response_format": {"type": "json_object"}}, of("json_object", "")),
    (
        {"response_format": TAG},
        of(
            "structural_tag",
            '{"type":"structural_tag","structures":[{"begin":"<a>","schema":{},"end":"</a>"}],"triggers":["<a>"]}',
        ),
    ),
    ({"response_format": FORMAT}, of("structural_tag", AS_TAG)),
    ({"structured_outputs": {"structural_tag": FORMAT}}, of("structural_tag", AS_TAG)),
    ({"structured_outputs": {"structural_tag": AS_TAG}}, of("structural_tag", AS_TAG)),
    ({"structured_outputs": {"json": SCHEMA}}, of("json_schema", AS_JSON)),
    ({"structured_outputs": {"json": AS_JSON, "backend": "g"}}, of("json_schema", AS_JSON, backend="g")),
    ({"structured_outputs": {"json_object": True}}, of("json_object", "")),
    ({"structured_outputs": {"regex": "a+"}}, of("regex", "a+")),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, of("grammar", 'start: "a"')),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "disable_additional_properties": True}},
        of("json_schema", AS_JSON, any_whitespace=False, additional_properties=False),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
        of("json_schema", AS_JSON, whitespace_pattern=" ?"),
    ),
    ({"guided_json": SCHEMA}, of("json_schema", AS_JSON)),
    ({"guided_regex": "a+", "guided_decoding_backend": "g"}, of("regex", "a+", backend="g")),
    ({"guided_choice": ["a", "b"]}, of("choice", '["a","b"]')),
    ({"guided_grammar": 'start: "a"'}, of("grammar", 'start: "a"')),
    ({"guided_decoding": {"regex": "b"}}, of("regex", "b")),
    ({"regex": "a+"}, of("regex", "a+")),
    ({"ebnf": 'root ::= "a"'}, of("grammar", 'root ::= "a"')),
    ({"grammar": 'root ::= "a"'}, of("grammar", 'root ::= "a"')),
    ({"json_schema": SCHEMA}, of("json_schema", AS_JSON)),
    ({"json_schema": AS_JSON}, of("json_schema", AS_JSON)),
    # equal ones are one, and those by older names count for nothing beside the new one
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "b", "guided_decoding_backend": "x"}, of("regex", "a")),
    ({"structured_outputs": {"regex": "a"}, "guided_decoding": {"choice": []}}, of("regex", "a")),
    ({"guided_json": SCHEMA, "json_schema": AS_JSON}, of("json_schema", AS_JSON)),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}}, of("json_object", "")),
]


async def ask(tmp_path: Any, **fields: Any) -> tuple[Any, PretendClient]:
    pretend = PretendClient()
    async with http(pretend_app(tmp_path, pretend, registry=REGISTRY)) as client:
        return await client.post("/v1/completions", json={"prompt": "a", **fields}), pretend


@pytest.mark.parametrize(("fields", "wanted"), SPELLINGS)
async def test_every_spelling_arrives_at_the_engine(
    tmp_path: Any, fields: dict[str, Any], wanted: StructuredSpec
) -> None:
    answer, pretend = await ask(tmp_path, **fields)
    assert answer.status_code == 200, answer.text
    assert [request.params.structured for request in pretend.requests] == [wanted]
    assert pretend.requests[0].params.structured.param == next(iter(fields))  # what errors will name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guided_choice": []}, "must not be empty"),
        ({"guided_regex": "\0"}, "`guided_regex`: a regex must not have the character NUL"),
        ({"guided_decoding": {"regex": "a", "choice": ["a"]}}, "got regex and choice"),
        ({"structured_outputs": {}}, "exactly one constraint"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "got json and regex"),
        ({"structured_outputs": {"choice": []}}, "must not be empty"),
        ({"structured_outputs": {"regex": "\0"}}, "NUL"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "exclude each other"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "exclude each other"),
        ({"structured_outputs": {"regex": "a"}, "regex": "b"}, "`structured_outputs` and `regex` exclude each other"),
        ({"response_format": {"type": "json_schema"}}, "needs `json_schema.schema`"),
        ({"structured_outputs": {"json": {"description": "x" * 300_000}}}, "at most 262144 characters"),
    ],
)
async def test_what_is_no_constraint_is_refused(tmp_path: Any, fields: dict[str, Any], said: str) -> None:
    answer, pretend = await ask(tmp_path, **fields)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == list(fields)[-1]
    assert not pretend.requests


async def test_a_beam_search_takes_one_too(tmp_path: Any) -> None:
    _, pretend = await ask(tmp_path, use_beam_search=True, n=2, max_tokens=4, guided_regex="a+")
    assert pretend.requests[0].params.structured == of("regex", "a+")


async def test_a_kind_that_no_plugin_offers_names_the_plugins_to_enable(tmp_path: Any) -> None:
    enabled = PluginInfo("choice", "quire_plugins.structured.choice", "quire", "0", hooks=(), records={}, enabled=True)
    asked = {"response_format": {"type": "json_object"}}
    async with http(pretend_app(tmp_path, PretendClient(), registry=Registry(plugins=(enabled,)))) as client:
        answer = await client.post("/v1/completions", json={"prompt": "a", **asked})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.endswith("'llguidance' does, but is not enabled: add it, as in --plugins choice,llguidance.")
