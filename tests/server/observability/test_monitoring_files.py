"""The dashboard for Grafana and the alert rules for Prometheus, on the metrics that there are."""

import math
import re

import pytest
from fake_client import info
from monitoring_files import ALERTS, DASHBOARD, PANELS, queries
from promql import Scrapes

from quire.server.metrics.metrics import Metrics, Timings
from quire.types import EngineStats, RequestSummary, SpeculationStats
from quire.types.adapter_info import AdapterStats

HEALTHY = {"calls": 9, "errors": 0, "seconds": 0.1, "dropped": 0, "off": []}


def engine(prompt=1000, **figures):
    counts = {"num_prompt_tokens_total": prompt, "num_queried_tokens_total": prompt, "num_cached_tokens_total": 10}
    drafts = SpeculationStats(
        num_drafts_total=prompt, num_draft_tokens_total=3 * prompt, num_accepted_per_position=(prompt, prompt // 2, 0)
    )
    known = {"num_pages": 64, "adapters": AdapterStats(), "speculation": drafts}
    return EngineStats(model="tiny", **{**known, **counts, **figures})


def ended(reason, seconds=0.1):
    return RequestSummary(
        request_id="r",
        model="tiny",
        adapters=("poems",),
        finish_reason=reason,
        num_prompt_tokens=4,
        num_cached_tokens=0,
        num_generated_tokens=5,
        n=1,
        max_tokens=5,
        queue_s=0.0,
        prefill_s=seconds,
        decode_s=seconds,
        e2e_s=2 * seconds,
        first_token_s=seconds,
    )


def scrapes(*moments, prefix="quire:"):
    """Scrapes of one server a minute apart. A moment: functions that change its metrics."""
    metrics, texts = Metrics([info()], prefix), []
    for number, changes in enumerate(moments):
        for change in changes:
            change(metrics)
        texts.append((60.0 * number, metrics.text()[0].decode()))
    return Scrapes.from_texts(texts)


def requests(reason, seconds=0.1, count=100):
    def change(metrics):
        for _ in range(count):
            metrics.finished(ended(reason, seconds), Timings(token_gaps_s=(seconds,) * 4, longest=5))

    return change


def healthy(prefix="quire:"):
    first = [requests("stop"), lambda m: m.observe_engine(engine()), lambda m: m.observe_plugins([plugin()])]
    then = [requests("stop"), lambda m: m.observe_engine(engine(2000, iteration_tokens=(5, 7)))]
    return scrapes(first, then, prefix=prefix)


def plugin(**changes):
    return {"plugin": "p", **HEALTHY, **changes}


@pytest.mark.parametrize("prefix", ["quire:", "vllm:", ""])
def test_every_query_of_the_dashboard_returns_series_whatever_the_prefix_is(prefix):
    found = healthy(prefix)
    for title, query in queries(prefix):
        values = found.evaluate(query)
        assert values, (title, query)
        assert not any(map(math.isnan, values.values())), (title, query)


def test_panels_explain_themselves_and_do_not_overlap():
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)


def test_queries_follow_the_variables_of_the_dashboard():
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "prefix", "instance", "model"}
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            assert 'instance=~"$instance"' in query
            assert ('model_name=~"$model"' in query) != ("plugin" in query or "process_" in query), query
            assert target["datasource"]["uid"] == "${datasource}"


def test_no_alert_fires_on_a_healthy_server():
    found = healthy()
    assert [rule["alert"] for rule in ALERTS if found.evaluate(rule["expr"])] == []


SICK = [
    requests("stop", seconds=9.0, count=10),
    requests("error", seconds=9.0),
    lambda m: m.rejected("tiny", "queue_full"),
    lambda m: m.observe_plugins([plugin(errors=3, dropped=2, off=["f"])]),
    lambda m: m.observe_engine(
        engine(
            num_waiting=50,
            num_pages_used=64,
            num_corrupted_total=1,
            num_preemptions_recompute_total=60,
            num_generated_tokens_total=1,  # less than before: it was restarted
            adapters=AdapterStats(num_load_failures_total=1, num_reads_total=60),
        )
    ),
]
BEFORE = [
    lambda m: m.observe_plugins([plugin()]),
    lambda m: m.observe_engine(engine(num_waiting=50, num_pages_used=64, num_generated_tokens_total=100)),
]


@pytest.fixture(scope="module")
def sick():
    """Scrapes of a server with all troubles, which at last does not answer."""
    found = scrapes(BEFORE, SICK)
    (points,) = found.series["up"].values()
    points[-1] = (points[-1][0], 0.0)
    return found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_fires_on_a_server_with_its_trouble_and_names_it(sick, rule):
    values = sick.evaluate(rule["expr"])
    assert len(values) == 1
    annotations, (labels,) = rule["annotations"], values
    used = re.findall(r"\$labels\.(\w+)", annotations["summary"] + annotations["description"])
    assert set(used) <= dict(labels).keys()
    assert rule["labels"]["severity"] in ("warning", "critical")
