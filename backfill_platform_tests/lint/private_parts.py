"""A contract for import-linter: private modules and names of a package are imported in a few places only.

import-linter sees other packages as one module each, so this one reads the imports that it has found as text.
"""

import re
from collections.abc import Iterable
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PrivatePartsContract(Contract):
    """`package` is the other package; modules below those of `allowed_in` may import what begins with an underscore."""

    type_name = "private_parts"

    package = fields.StringField()
    allowed_in = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Broken where another module imports a private part; `metadata` lists each import."""
        # import-linter puts the value of a field in its place.
        allowed = tuple(f"{name}." for name in cast(Iterable[str], self.allowed_in))
        name = re.escape(str(self.package))
        private = re.compile(rf"(?:from|import)\s+{name}(?:\w*)(?:\.\w+)*\._|from\s+{name}[\w.]*\s+import\s.*(?<!\w)_\w")
        imports = [
            f"{importer} (line {details['line_number']}): {details['line_contents'].strip()}"
            for module in graph.modules
            if re.match(rf"{name}\w*$", module)
            for importer in graph.find_modules_that_directly_import(module)
            if not f"{importer}.".startswith(allowed)
            for details in graph.get_import_details(importer=importer, imported=module)
            if private.search(details["line_contents"])
        ]
        return ContractCheck(kept=not imports, metadata={"imports": sorted(imports)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that breaks the contract."""
        for line in check.metadata["imports"]:
            output.print_error(line)
