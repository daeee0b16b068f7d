"""`/v1/systemone`: typed questions, and probabilities that are those of the model's labels."""

import asyncio
import math
from dataclasses import replace

import pytest
from api_rig import api_app, in_process, with_plugins
from fake_client import PretendClient, info, pretend_app
from scripted_server import TALK

from quire.records import RequestGate
from quire.types import SeqDelta, TokenLogprobs
from quire_apis.decisions.questions import TypedQuestion, typed_question
from quire_apis.decisions.reading import label_ids
from quire_apis.decisions.schemas import QuestionSpec

TEAM = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "shipping": None}}
TONE = {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]}


class Opinion(PretendClient):
    """Every reply has the same distribution of its first token. running_at_once: the most requests at a time."""

    def __init__(self, probabilities, **kind):
        super().__init__(info(max_model_len=2000, **kind))
        self.probabilities = {ord(letter): share for letter, share in probabilities.items()}
        self.running_at_once = []

    def _delta(self, request, index, begin):
        self.running_at_once.append(len(self.running))
        ranked = sorted(self.probabilities, key=self.probabilities.get, reverse=True)
        (token,) = request.params.allowed_token_ids or ranked[:1]
        top = tuple((one, math.log(self.probabilities[one])) for one in ranked[: request.params.logprobs])
        own = TokenLogprobs(
            token_id=token, logprob=math.log(self.probabilities[token]), rank=ranked.index(token) + 1, top=top
        )
        self.running[request.id].discard(index)
        return SeqDelta(
            request_id=request.id,
            index=index,
            token_ids=(token,),
            logprobs=(own,),
            finish_reason="length",
            num_cached_tokens=0,
            queue_s=0.1,
        )


async def asked(folder, pretend, settings=None, **body):
    app = api_app(folder, pretend, ["decisions"], settings=settings)
    async with in_process(app) as client:
        return await client.post("/v1/systemone", json=body)


def texts_of(pretend):
    return [bytes(token for token in one.prompt.token_ids if token < 256).decode() for one in pretend.requests]


SPREAD = {"A": 0.4, "x": 0.3, "B": 0.1, "0": 0.08, "1": 0.06, "2": 0.02, "y": 0.04}


async def test_answers_are_the_shares_of_the_labels(tmp_path):
    pretend = Opinion(SPREAD)
    state = {"ticket": "My card was charged twice."}
    answer = await asked(tmp_path, pretend, state=state, questions={"team": TEAM, "tone": TONE}, instructions="Decide.")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["object"], found["model"]) == ("structured_decision", "tiny")
    assert found["id"].startswith("decision-")
    assert found["answers"]["team"] == {
        "type": "choice",
        "choice": "billing",
        "probabilities": pytest.approx({"billing": 0.8, "shipping": 0.2}),
        "confidence": pytest.approx(0.4),
    }
    tone = found["answers"]["tone"]
    assert tone["probabilities"] == pytest.approx({"0": 0.5, "1": 0.375, "2": 0.125})
    assert tone["score"] == pytest.approx(0.625)
    assert tone["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"}
    assert tone["confidence"] == pytest.approx(0.08)
    assert found["diagnostics"] == {
        "team": {"label_mass": pytest.approx(0.5), "argmax_is_label": True},
        "tone": {"label_mass": pytest.approx(0.16), "argmax_is_label": False},
    }
    first, second = texts_of(pretend)
    shared = 'Decide.\n\n{"ticket":"My card was charged twice."}\n\n'
    assert f"{shared}Which team?\nA) billing: payments\nB) shipping\nReply with the letter" in first
    assert f"{shared}How upset?\n0) calm\n1) annoyed\n2) furious\nReply with the number" in second
    assert found["usage"] == {
        "input_tokens": sum(len(one.prompt.token_ids) for one in pretend.requests),
        "output_tokens": 2,
    }
    assert all(one.params.max_tokens == 1 for one in pretend.requests)


async def test_labels_that_are_not_reported_are_asked_for_alone(tmp_path):
    for most in (0, 1, 3):
        pretend = Opinion(SPREAD, max_logprobs=most)
        found = (await asked(tmp_path, pretend, state="x", questions={"tone": TONE})).json()
        assert found["answers"]["tone"]["probabilities"] == pytest.approx({"0": 0.5, "1": 0.375, "2": 0.125})
        assert found["diagnostics"]["tone"]["argmax_is_label"] is False
        assert [one.params.allowed_token_ids for one in pretend.requests] == [None, (48,), (49,), (50,)]
        assert len({one.prompt.token_ids for one in pretend.requests}) == 1


async def test_the_state_is_read_by_the_first_question_and_the_others_run_together(tmp_path):
    pretend = Opinion(SPREAD)
    questions = {str(number): {**TEAM, "instructions": f"Team {number}?"} for number in range(64)}
    answer = await asked(tmp_path, pretend, state="s", questions=questions, cache_salt="salt", priority=3)
    assert list(answer.json()["answers"]) == list(questions)
    assert pretend.running_at_once[0] == 1
    assert 1 < max(pretend.running_at_once) <= 8
    assert {(one.cache_salt, one.priority) for one in pretend.requests} == {("salt", 3)}


async def test_gates_see_each_question_as_a_chat(tmp_path):
    class Gate:
        def admit(self, request):
            seen.append((request.route, request.body.get("messages", [{"content": ""}])[0]["content"][:14]))
            return request

    seen = []
    found = with_plugins(["decisions"])
    gates = {"quire_request_gates": {"g": RequestGate("g", lambda context: Gate())}}
    origin = {**found.origin, ("quire_request_gates", "g"): "mine"}
    pretend = Opinion(SPREAD)
    app = pretend_app(
        tmp_path, pretend, None, replace(found, records={**found.records, **gates}, origin=origin), template=TALK
    )
    async with in_process(app) as client:
        for _ in range(2):
            answer = await client.post("/v1/systemone", json={"state": "s", "questions": {"a": TEAM}})
            assert answer.status_code == 200
    question = ("/v1/systemone", "s\n\nWhich team?")
    assert seen == [("/tokenize", ""), ("/tokenize", ""), question, question]  # labels are looked up once


WRONG = [
    ({"questions": {}}, "questions"),
    ({"questions": {str(number): TEAM for number in range(65)}}, "questions"),
    ({"questions": {"a": {**TEAM, "labels": ["x"]}}}, "questions"),
    ({"questions": {"": TEAM}}, "questions"),
    ({"questions": {"a": {"type": "box"}}}, "questions.a.type"),
    ({"questions": {"a": {"type": "choice", "criteria": {}}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "choice", "criteria": {str(n): None for n in range(27)}}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "choice", "criteria": {"b": 7}}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "choice", "criteria": {"": None}}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "noul", "criteria": {"maybe": "x"}}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "score", "criteria": ["one"]}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "score", "criteria": ["one", "one"]}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "score", "criteria": list("abcdefghijk")}}}, "questions.a.criteria"),
    ({"questions": {"a": {"type": "noul"}}}, "questions.a"),  # yes is no single token of bytes
    ({}, "questions"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=range(len(WRONG)))
async def test_what_cannot_be_asked_is_refused_before_anything_runs(tmp_path, body, param):
    pretend = Opinion(SPREAD)
    answer = await asked(tmp_path, pretend, **{"state": "s", **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert param in f"{error['param']} {error['message']}"
    assert not pretend.requests


async def test_models_that_cannot_read_and_media_that_they_do_not_take_are_refused(tmp_path):
    pretend = Opinion(SPREAD)
    assert (await asked(tmp_path, pretend, state="s", questions={"a": TEAM}, model="no")).status_code == 404
    answer = await asked(tmp_path, pretend, state="s", questions={"a": TEAM}, images=["aGk="])
    assert answer.status_code == 400
    assert "image" in answer.json()["error"]["message"]
    assert not pretend.requests


async def test_a_client_that_goes_away_aborts_all_questions(tmp_path):
    pretend = Opinion(SPREAD)
    pretend.hold, pretend.held_at = asyncio.Event(), 0
    task = asyncio.create_task(asked(tmp_path, pretend, state="s", questions={"a": TEAM, "b": TONE}))
    await pretend.progress.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pretend.aborted == [pretend.requests[0].id]


def test_yes_and_no_count_in_each_spelling_that_is_a_token():
    spec = QuestionSpec(type="noul", instructions="Urgent?", criteria={"true": "money is moving"})
    question = typed_question("q", spec)
    assert isinstance(question, TypedQuestion)
    assert question.text() == "Urgent?\nyes: money is moving\nReply with yes or no and nothing else."
    assert label_ids(question, {"yes": 1, "Yes": 2, "No": 3}) == [[1, 2], [3]]
    answer = question.answer([0.25, 0.75], 0.8)
    assert answer == {
        "type": "noul",
        "noul": 0.25,
        "probabilities": {"yes": 0.25, "no": 0.75},
        "confidence": pytest.approx(0.6),
    }
