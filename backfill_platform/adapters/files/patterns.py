"""Which files an hour has: one that is named by its hour, or all that a folder or a pattern holds.

A pattern is a URI with strftime codes. `*` stands for any characters within a name, `**/` for folders of any depth, and a
pattern that ends in `/` for all files of that folder. As for Spark, names that begin with `_` or `.` are no data.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pyarrow.fs

from backfill_platform.adapters.records.storage import located, path_of

_CODE = re.compile("%[YmdHj]")
_DIGITS = {"%Y": 4, "%m": 2, "%d": 2, "%H": 2, "%j": 3}
_PART = re.compile(r"%[YmdHj]|\*\*/|\*")
_REGULAR = {"**/": r"(?:(?![_.])[^/]+/)*", "*": r"[^/]*"}
_VISIBLE = r"(?![_.])[^/]*"  # a `*` at the beginning of a name


def named(pattern: str, hour: datetime) -> str:
    """The pattern for an hour. Only date codes are replaced: another `%` stays."""
    return _CODE.sub(lambda code: hour.strftime(code[0]), pattern)


def fixed_folder(pattern: str) -> str:
    """The folder of all files of a pattern: what comes before its first code or `*`."""
    return re.split(r"%[YmdHj]|\*", pattern, maxsplit=1)[0].rpartition("/")[0]


def files_of(pattern: str, hours: Iterable[datetime]) -> dict[datetime, list[pyarrow.fs.FileInfo]]:
    """The files of each hour that are there, in the order of their names."""
    hours = list(hours)
    whole = f"{pattern}*" if pattern.endswith("/") else pattern
    if not hours:
        return {}
    if "*" in whole:
        return _listed(whole, hours)
    filesystem, _ = located(named(whole, hours[0]))
    infos = filesystem.get_file_info([path_of(named(whole, hour)) for hour in hours])
    return {hour: [info] if _is_file(info) else [] for hour, info in zip(hours, infos, strict=True)}


def _listed(pattern: str, hours: Collection[datetime]) -> dict[datetime, list[pyarrow.fs.FileInfo]]:
    filesystem, path = located(pattern)
    codes, regular = _CODE.findall(path), _regular(path)
    # Codes may come twice; all of them say the same hour.
    by_codes = {tuple(hour.strftime(code) for code in codes): hour for hour in hours}
    folders = dict.fromkeys(named(path, hour).partition("*")[0].rpartition("/")[0] for hour in hours)
    deep = "/" in path[path.index("*") :]

    def listing(folder: str) -> list[pyarrow.fs.FileInfo]:
        selector = pyarrow.fs.FileSelector(folder, recursive=deep, allow_not_found=True)
        return [info for info in filesystem.get_file_info(selector) if _is_file(info)]

    found: Mapping[datetime, dict[str, pyarrow.fs.FileInfo]] = {hour: {} for hour in hours}
    with ThreadPoolExecutor() as pool:
        for infos in pool.map(listing, folders):
            for info in infos:
                match = regular.fullmatch(info.path)
                if match and (hour := by_codes.get(match.groups())):
                    found[hour][info.path] = info
    return {hour: [files[path] for path in sorted(files)] for hour, files in found.items()}


def _regular(path: str) -> re.Pattern[str]:
    parts, at = [], 0
    for part in _PART.finditer(path):
        parts.append(re.escape(path[at : part.start()]))
        text, at = part[0], part.end()
        if text in _DIGITS:
            parts.append(rf"(\d{{{_DIGITS[text]}}})")
        else:
            starts_name = text == "*" and path[part.start() - 1 : part.start()] == "/"
            parts.append(_VISIBLE if starts_name else _REGULAR[text])
    return re.compile("".join([*parts, re.escape(path[at:])]))


def _is_file(info: pyarrow.fs.FileInfo) -> bool:
    return bool(info.type == pyarrow.fs.FileType.File)
