"""The queries of examples/monitoring, with variables of Grafana replaced as Grafana does."""

import json
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana_dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [
    rule
    for group in yaml.safe_load((FOLDER / "prometheus_alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


def queries(prefix="quire:"):
    """(panel, query) for each query of the dashboard."""
    variables = {"${prefix}": prefix, "$model": ".*", "$instance": ".*", "$__rate_interval": "1m"}
    found = []
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in variables.items():
                query = query.replace(name, value)
            found.append((panel["title"], query))
    return found
