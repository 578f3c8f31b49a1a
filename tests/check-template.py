"""The rules of template.yaml that no linter knows, checked on what SAM makes of it: `check-template.py template.yaml`."""

import os
import sys

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

# Properties that end in "Name" and name something else than the resource.
NOT_ITS_OWN = {"MetricName"}
# What such variables hold is a secret.
SECRETS = ("_NSEC", "_API_KEY", "_API_TOKEN", "_WEBHOOK_SECRETS")
# Whose agent it is and whom it answers is told at a deployment, not by a change of the template.
TOLD = {
    "DIDACTYL_ADMIN",
    "DIDACTYL_RELAYS",
    "DIDACTYL_LLM",
    "DIDACTYL_SENDERS",
    "DIDACTYL_GUEST_PER_HOUR",
    "DIDACTYL_GUESTS_PER_HOUR",
}


class NoManagedPolicies:
    """Those of AWS allow actions on everything; the template uses none."""

    def load(self):
        return {}


def statements(node):
    """Every statement of every policy below `node`."""
    if isinstance(node, dict):
        found = node.get("Statement", [])
        yield from found if isinstance(found, list) else [found]
    for child in children(node):
        yield from statements(child)


def children(node):
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else []


def strings(node):
    if isinstance(node, str):
        yield node
    for child in children(node):
        yield from strings(child)


def branches(statement):
    """The statement, or those that an Fn::If chooses from."""
    return [b for b in statement["Fn::If"][1:] if "Effect" in b] if "Fn::If" in statement else [statement]


def too_wide(resource):
    for statement in statements(resource):
        for branch in branches(statement):
            for key in ("Action", "Resource"):
                wide = [s for s in strings(branch.get(key, [])) if s == "*" or s.endswith(":*")]
                if wide or f"Not{key}" in branch:
                    yield f"a statement allows more than it names in its {key}"
    for policy in resource["Properties"].get("ManagedPolicyArns", []):
        if set(policy) != {"Ref"}:
            yield "a role has a policy that this template does not show"


def fixed_names(resource):
    for key, value in resource["Properties"].items():
        if key.endswith("Name") and key not in NOT_ITS_OWN:
            refers = isinstance(value, dict) and ("Ref" in value or "Fn::GetAtt" in value)
            if not refers and not any("${AWS::StackName}" in s for s in strings(value)):
                yield f"{key} is the same in every stack"


def open_secrets(resource):
    variables = resource["Properties"].get("Environment", {}).get("Variables", {})
    for name, value in variables.items():
        # Of an Fn::If, the condition and AWS::NoValue are no values.
        values = [v for v in value["Fn::If"][1:] if "Ref" not in v] if "Fn::If" in value else [value]
        references = ["Fn::Sub" in v and v["Fn::Sub"].startswith("ssm:") for v in values]
        if name.endswith(SECRETS) and not all(references):
            yield f"{name} is no reference to an SSM parameter"


def untold(template):
    """The variables of each function that are to be parameters and are none."""
    for logical_id, resource in template["Resources"].items():
        if resource["Type"] == "AWS::Lambda::Function":
            variables = resource["Properties"]["Environment"]["Variables"]
            parameters = {name: variables.get(name, {}) for name in TOLD}
            for name in sorted(n for n, v in parameters.items() if v.get("Ref") not in template["Parameters"]):
                yield f"{logical_id}: {name} is no parameter of the template"


def faults(template):
    yield from untold(template)
    for logical_id, resource in template["Resources"].items():
        for rule in (too_wide, fixed_names, open_secrets):
            for fault in rule(resource):
                yield f"{logical_id}: {fault}"


def main(path):
    with open(path) as file:
        template = yaml_parse(file)
    os.environ.setdefault("AWS_DEFAULT_REGION", "eu-central-1")  # any will do
    # SAM takes code from S3 alone; `sam deploy` uploads it before.
    for resource in template["Resources"].values():
        if "CodeUri" in resource["Properties"]:
            resource["Properties"]["CodeUri"] = "s3://bucket/key"
    found = list(faults(transform(template, {}, NoManagedPolicies())))
    for fault in found:
        print(f"{path}: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
