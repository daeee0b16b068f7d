"""`/v1/moderations` with OpenAI's client: classes of a classifier as categories."""

import numpy as np
import openai
import pytest
from api_rig import URL, api_app, in_process
from fake_client import PretendClient, classifier, info, numbers_of


@pytest.fixture
def pretend():
    return PretendClient(info(), classifier("Safe", "hate", "violence"))


def client_of(folder, pretend, **options):
    app = api_app(folder, pretend, ["moderations"], {"moderations": options})
    return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, http_client=in_process(app))


async def test_texts_are_flagged_by_the_scores_of_the_classifier(tmp_path, pretend) -> None:
    client = client_of(tmp_path, pretend, threshold=0.5)
    answer = await client.moderations.create(input=["ab", "xyz"], model="omni-moderation-latest")
    assert answer.model == "classifier"
    assert len(answer.results) == 2
    for request, result in zip(pretend.requests, answer.results, strict=True):
        scores = dict(zip(("hate", "violence"), numbers_of(pretend.infos[1], request)[1:], strict=True))
        given = result.category_scores.model_extra | {
            name: value for name, value in result.category_scores if value is not None
        }
        assert given.keys() == scores.keys()
        assert all(np.isclose(given[name], score) for name, score in scores.items())
        assert result.flagged == (max(scores.values()) >= 0.5)


async def test_labels_and_the_threshold_are_options(tmp_path, pretend) -> None:
    for threshold in (0.0, 1.1):
        client = client_of(tmp_path, pretend, threshold=threshold, safe="hate")
        (result,) = (await client.moderations.create(input=[{"type": "text", "text": "ab"}])).results
        assert result.flagged == (threshold == 0)
        assert result.category_scores.model_extra.keys() == {"Safe"}


async def test_a_model_without_classes_is_refused(tmp_path, pretend) -> None:
    with pytest.raises(openai.BadRequestError, match="tiny"):
        await client_of(tmp_path, pretend).moderations.create(input="ab", model="tiny")
    with pytest.raises(openai.BadRequestError, match="No served model"):
        await client_of(tmp_path, PretendClient()).moderations.create(input="ab")
