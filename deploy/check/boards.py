"""Dashboards and alerts: each metric and label that they ask for is one that the proxy writes, and each query parses.

What it writes stands in deploy/docs/metrics.md, which a test of the proxy compares with its code. Istio's own ztunnel
dashboard is checked as well, so that it goes on showing everything.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parent.parent
ALERTS = DEPLOY / "chart" / "files" / "alerts.yaml"
TESTS = DEPLOY / "alerts" / "tests.yaml"
PAGE = DEPLOY / "docs" / "metrics.md"
RUNBOOK = DEPLOY / "docs" / "alerts.md"
BOARD = DEPLOY / "chart" / "files" / "dashboard.json"
# Of the scrape and of the kubelet's cAdvisor, not of the proxy.
SCRAPED = {"app", "pod", "container", "le"}
FOREIGN = re.compile(r"container_\w+|up|ALERTS")
FUNCTIONS = {"sum", "min", "max", "count", "rate", "irate", "increase", "histogram_quantile", "time", "label_values"}
WORDS = {"by", "ignoring", "group_left", "and", "or", "unless", "on"}


def families():
    """The families and the labels of the metrics page, which is made of the code: {name: (type, labels)}."""
    text = PAGE.read_text()
    those = re.search(r"^Labels of connections, in this order: (.*?)\n\n", text, re.M | re.S)[1]
    found = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) \|", text, re.M):
        if "those of connections" in labels:
            labels += those
        found[name] = kind, set(re.findall(r"`(\w+)`", labels))
    return found


def family(metric, known):
    """The family that a metric of a query belongs to; None where there is none."""
    if metric in known:
        return None if known[metric][0] == "histogram" else metric
    base = re.sub(r"_(bucket|sum|count)$", "", metric)
    return base if known.get(base, ("",))[0] == "histogram" else None


def parts(query):
    """The names of the metrics and of the labels in a query."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', query)
    labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*""', bare))
    for group in re.findall(r"\b(?:by|ignoring|on|group_left)\s*\(([^)]*)\)", bare):
        labels.update(re.findall(r"\w+", group))
    bare = re.sub(r"\b(?:by|ignoring|on|group_left)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", bare)
    return {word for word in re.findall(r"\b[a-zA-Z_]\w*", bare) if word not in FUNCTIONS | WORDS}, labels


def queries(panels):
    for panel in panels:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
        yield from queries(panel.get("panels", []))


def check_queries(place, asked, known):
    for title, query in asked:
        metrics, labels = parts(query)
        ours = {metric for metric in metrics if not FOREIGN.fullmatch(metric)}
        have = set(SCRAPED)
        for metric in sorted(ours):
            name = family(metric, known)
            if name is None:
                yield f"{place}, {title}: no such metric: {metric}"
            else:
                have |= known[name][1]
        # A query that divides names labels of either side.
        for label in sorted(labels - have):
            if ours:
                yield f"{place}, {title}: no such label: {label}"


def parse(promtool, place, asked):
    """Prometheus's own parser, on the queries as rules, with Grafana's variables replaced."""
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$pod", ".*")}
        for number, (_, query) in enumerate(asked)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}, file)
        file.flush()
        done = subprocess.run([promtool, "check", "rules", file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{place}: {done.stdout}{done.stderr}"


def check_alerts(rules):
    """Each alert has a place in the runbook and fires in a test; the runbook and the tests name no others."""
    names = {rule["alert"] for rule in rules}
    headings = set(re.findall(r"^## (Ringway\w+)$", RUNBOOK.read_text(), re.M))
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    asked = [query for test in tests for query in test.get("promql_expr_test", [])]
    samples = [sample for query in asked for sample in query["exp_samples"]]
    fired = {re.fullmatch(r'\{alertname="(\w+)"\}', sample["labels"])[1] for sample in samples}
    for place, found in (("deploy/docs/alerts.md", headings), ("deploy/alerts/tests.yaml", fired)):
        for name in sorted(names ^ found):
            yield f"alert {name} is {'missing in' if name in names else 'only in'} {place}"
    for rule in rules:
        if rule["annotations"]["runbook_url"] != f"deploy/docs/alerts.md#{rule['alert'].lower()}":
            yield f"alert {rule['alert']}: its runbook_url leads elsewhere"


def check_board(board):
    numbers, places = set(), set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        if panel["id"] in numbers or cells & places or place["x"] + place["w"] > 24:
            yield f"our dashboard: {panel['title']} has another's number or place"
        numbers.add(panel["id"])
        places |= cells


def main(promtool, reference):
    known = families()
    board = json.loads(BOARD.read_text())
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    asked = {
        "Istio's dashboard": list(queries(json.loads(Path(reference).read_text())["panels"])),
        "our dashboard": list(queries(board["panels"])),
        "alerts": [(rule["alert"], rule["expr"]) for rule in rules],
    }
    problems = [*check_alerts(rules), *check_board(board)]
    for place, found in asked.items():
        # Nothing read is nothing checked.
        if len(found) < 10:
            problems.append(f"{place}: only {len(found)} queries were found")
        problems += [*check_queries(place, found, known), *parse(promtool, place, found)]
    for problem in problems:
        print(f"dashboards and alerts: {problem}", file=sys.stderr)
    count = ", ".join(f"{len(found)} of {place}" for place, found in asked.items())
    print(f"queries: {count}; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
