"""The examples of clusters: valid by Ray's schema, and with the fields that KubeRay requires; their commands parse."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaptdel.cli import commands

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def test_the_cluster_is_valid_by_the_schema_of_ray() -> None:
    autoscaler = pytest.importorskip("ray.autoscaler")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(autoscaler.__file__).with_name("ray-schema.json").read_text(encoding="utf-8"))
    values = read("cluster.yaml")
    jsonschema.validate(values, schema)
    assert values["head_node_type"] in values["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"max_workers": "many"}, schema)


def test_the_job_has_the_fields_of_kuberay() -> None:
    values = read("rayjob.yaml")
    assert (values["apiVersion"], values["kind"]) == ("ray.io/v1", "RayJob")
    spec = values["spec"]
    cluster = spec["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert isinstance(group["rayStartParams"], dict)
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    program, command, *arguments = shlex.split(spec["entrypoint"])
    assert program == "adaptdel"
    with commands.make_context(program, [command, *arguments], resilient_parsing=False) as context:
        known = commands.get_command(context, command)
        assert known is not None
        known.make_context(command, arguments).close()
