"""Write the rules that the compose file's Prometheus reads: the PrometheusRule without its
Kubernetes wrapping."""

from __future__ import annotations

import yaml

from tests.deploy.tools import ROOT

if __name__ == "__main__":
    content = yaml.safe_load(
        (ROOT / "deploy" / "components" / "monitoring" / "prometheusrule.yaml").read_text()
    )
    written = yaml.safe_dump(content["spec"], sort_keys=False, width=120)
    (ROOT / "deploy" / "compose" / "rules.yaml").write_text(
        "# Made by `make deploy-rules` from ../components/monitoring/prometheusrule.yaml; do not "
        "edit by hand.\n" + written
    )
