"""Small YAML files that people write: nothing is said twice, and nothing refers to another place."""

from typing import Any, TextIO

import yaml

from backfill_platform.domain.documents import fields_once
from backfill_platform.errors import UsageError

_MOST_CHARACTERS = 100_000


class _Loader(yaml.SafeLoader):
    """YAML without what a small file does not need: aliases (a few lines of them make gigabytes) and repeated names."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it refers to another place of the file (*name); write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        fields_once([(str(name), None) for name in names])
        return super().construct_mapping(node, deep=deep)


# Hours are texts to us; YAML would make dates of some of them.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(file: TextIO) -> Any:
    """The value of a YAML file. Raises UsageError, in one sentence naming the file, for what cannot be used."""
    text = file.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{file.name} has more than {_MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except RecursionError:
        raise UsageError(f"{file.name} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file.name} is no YAML that can be used{where}: {str(problem)[:200]}") from None
