"""Records what rankpatrol relies on of a torch version, from its wheel (or an installed copy) and without importing it.

python tests/tools/record_torch_surface.py torch-2.6.0-….whl … --out tests/data/torch_surfaces

Names, signatures and format strings alone; where the wheels come from is in ORIGIN.md beside the records.
"""

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

RUN = "torch/distributed/run.py"
ELASTIC = "torch/distributed/elastic/"
C10D = "torch/distributed/distributed_c10d.py"
C10D_STUB = "torch/_C/_distributed_c10d.pyi"
VERSION = "torch/version.py"
# What the probe follows, what the shim reckons with, and what names a loader process; `file: qualified names`.
SIGNATURES = {
    "torch/optim/optimizer.py": ("register_optimizer_step_post_hook",),
    "torch/nn/modules/module.py": ("Module.eval",),
    "torch/serialization.py": ("save",),
    "torch/distributed/checkpoint/state_dict_saver.py": ("save", "async_save", "save_state_dict"),
    C10D: (
        "init_process_group",
        "destroy_process_group",
        "_new_process_group_helper",
        "new_group",
        "split_group",
        "shrink_group",
        "_World.default_pg",
        "_World.pg_map",
        "_World.pg_names",
        "_World.pg_group_ranks",
    ),
    "torch/_dynamo/callback.py": ("on_compile_start", "on_compile_end"),
    "torch/_dynamo/eval_frame.py": ("TorchPatcher.patch",),
    "torch/compiler/__init__.py": ("is_dynamo_compiling",),
    "torch/utils/data/dataloader.py": ("_BaseDataLoaderIter.__next__", "_MultiProcessingDataLoaderIter._next_data"),
    "torch/utils/data/_utils/worker.py": ("_worker_loop",),
    "torch/distributed/elastic/multiprocessing/api.py": ("PContext.close", "SubprocessContext._close"),
}
# Files whose functions stand in stacks that are told by name.
STACK_FILES = (
    C10D,
    "torch/distributed/utils.py",
    "torch/distributed/_functional_collectives.py",
    "torch/utils/data/dataloader.py",
    "torch/utils/data/_utils/worker.py",
    "torch/utils/data/_utils/fetch.py",
    "torch/autograd/graph.py",
    "torch/autograd/__init__.py",
)
LOGGING_FILES = (
    RUN,
    ELASTIC + "agent/server/api.py",
    ELASTIC + "agent/server/local_elastic_agent.py",
    ELASTIC + "multiprocessing/api.py",
    ELASTIC + "multiprocessing/errors/__init__.py",
    ELASTIC + "timer/api.py",
    ELASTIC + "timer/file_based_local_timer.py",
)
ENVIRONMENT_FILES = (RUN, "torch/distributed/launch.py", "torch/distributed/launcher/api.py", "torch/distributed/rendezvous.py")
TEMPLATES = ("_FAILURE_FORMAT_TEMPLATE", "_MSG_FORMAT_TEMPLATE")
LOG_CALLS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical"})
# Names that torch's C++ gives to Python; of the stub's only those are true.
NATIVE_NAMES = ("_WorkerServer", "_register_handler", "_dump_fr_trace", "_dump_fr_trace_json")
NATIVE_LIBRARY = "torch/lib/libtorch_python"
THREAD_NAMES = re.compile(r"_set_thread_name\(\s*['\"](\w+)['\"]")
NEVER_WAITED_IN = re.compile(r"^__(?!next__)|_(?:meta|native|setup_context)$")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
CONVERSION = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[sdfr]")


class Source(Protocol):
    """Where torch's files are read from."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes | None: ...


class Wheel:
    """A wheel, unopened but for the members that are asked for."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)

    def names(self) -> list[str]:
        return self._zip.namelist()

    def read(self, name: str) -> bytes | None:
        return self._zip.read(name) if name in self._zip.NameToInfo else None


class Folder:
    """An installed copy: the folder in which `torch` lies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        places = (self._path / "torch" / "distributed", self._path / "torch" / "lib")
        return sorted(str(path.relative_to(self._path)) for place in places for path in place.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes | None:
        path = self._path / name
        return path.read_bytes() if path.is_file() else None


def record(source: Source) -> dict[str, Any]:
    """The whole table of one version."""
    trees = Trees(source)
    elastic = [name for name in source.names() if name.startswith(ELASTIC) and name.endswith(".py")]
    return {
        "version": _version(trees.of(VERSION)),
        "torchrun": _flags(trees),
        "environment": {
            "read": sorted(set(_read_variables(trees, [*ENVIRONMENT_FILES, *elastic]))),
            "set_for_ranks": sorted(set(_set_variables(trees.of(ELASTIC + "agent/server/local_elastic_agent.py")))),
        },
        "signatures": {
            f"{file}:{name}": signature
            for file, names in SIGNATURES.items()
            for name in names
            if (signature := _signature(trees.of(file), name)) is not None
        },
        "shares_rendezvous_store": b"_shared_tcp_store_server" in (source.read(ELASTIC + "rendezvous/dynamic_rendezvous.py") or b""),
        "world_is_one": _assigned(trees.of(C10D), "_world") is not None,
        "functions": {file: " ".join(sorted(_functions(trees.of(file)))) for file in STACK_FILES},
        "log_lines": {file: lines for file in LOGGING_FILES if (lines := sorted(set(_log_lines(trees.of(file)))))},
        "templates": {name: _text(_assigned(trees.of(ELASTIC + "multiprocessing/errors/__init__.py"), name)) for name in TEMPLATES},
        "ranks_lead_sessions": any(_starts_sessions(trees.of(name)) for name in elastic if "multiprocessing" in name),
        "seconds_before_kill": _default_of(trees.of(ELASTIC + "multiprocessing/api.py"), "PContext.close", "timeout"),
        "loader_looks_every_s": _constant(_assigned(trees.of("torch/utils/data/_utils/__init__.py"), "MP_STATUS_CHECK_INTERVAL")),
        "thread_names": sorted({name for file in ("worker", "pin_memory") for name in _thread_names(source, file)}),
        "native": _native(source),
    }


class Trees:
    """The parsed files; one that a version does not have is empty."""

    def __init__(self, source: Source) -> None:
        self._source, self._seen = source, dict[str, ast.Module]()

    def of(self, name: str) -> ast.Module:
        if name not in self._seen:
            self._seen[name] = ast.parse(self._source.read(name) or b"")
        return self._seen[name]


def _version(tree: ast.Module) -> str:
    return _text(_assigned(tree, "__version__")).partition("+")[0]


def _flags(trees: Trees) -> dict[str, Any]:
    """torchrun's flags as its `--help` lists them, by their first long name with dashes."""
    found: dict[str, Any] = {}
    for call in _calls(trees.of(RUN), "add_argument"):
        names = [_text(word).replace("_", "-") if _text(word).startswith("--") else _text(word) for word in call.args]
        names = list(dict.fromkeys(names))
        keywords = {word.arg: word.value for word in call.keywords if word.arg != "help"}
        action = ast.unparse(keywords["action"]).strip("'\"") if "action" in keywords else "store"
        longest = max(names, key=len)
        flag = {"names": names, "action": action, "default": _default(keywords.get("default"))}
        if action in {"env", "check_env"}:
            flag["variable"] = "PET_" + longest.lstrip("-").replace("-", "_").upper()
        if "nargs" in keywords:
            flag["nargs"] = ast.unparse(keywords["nargs"])
        found[longest] = flag
    return found


def _default(node: ast.expr | None) -> Any:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _read_variables(trees: Trees, files: list[str]) -> Iterator[str]:
    for file in files:
        tree = trees.of(file)
        constants = dict(_constants(tree))
        for node in ast.walk(tree):
            asked: ast.expr | None = None
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).split(".")[-1] in {"getenv", "get", "get_env", "_get_env"}
                and node.args
            ):
                asked = node.args[0] if "env" in ast.unparse(node.func).lower() else None
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "os.environ":
                asked = node.slice
            name = constants.get(asked.id, "") if isinstance(asked, ast.Name) else _text(asked)
            if VARIABLE.fullmatch(name):
                yield name


def _set_variables(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        keys: list[ast.expr | None] = list(node.keys) if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        constants = dict(_constants(tree))
        for key in keys:
            name = constants.get(key.id, "") if isinstance(key, ast.Name) else _text(key)
            if VARIABLE.fullmatch(name):
                yield name


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _text(node.value):
            yield node.targets[0].id, _text(node.value)


def _signature(tree: ast.Module, name: str) -> str | None:
    """The parameters without their types; "property" for one. None where it is not there."""
    found = _function(tree, name)
    if found is None:
        return None
    if any(ast.unparse(each) == "property" or ast.unparse(each).endswith(".setter") for each in found.decorator_list):
        return "property"
    for each in ast.walk(found.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    return f"({ast.unparse(found.args)})"


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The last definition of that name; a class may hold it."""
    body: list[ast.stmt] = list(_statements(tree.body))
    *classes, last = name.split(".")
    for each in classes:
        body = [inner for node in body if isinstance(node, ast.ClassDef) and node.name == each for inner in _statements(node.body)]
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last]
    return found[-1] if found else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])


def _functions(tree: ast.Module) -> set[str]:
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in names if not NEVER_WAITED_IN.search(name)}


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value  # type: ignore[union-attr]
    return None


def _log_lines(tree: ast.Module) -> Iterator[str]:
    """Format strings of log calls and of exceptions' messages; what is filled in stands as {}."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in LOG_CALLS:
            text = _format(node.args[0])
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = _format(node.exc.args[0])
        elif isinstance(node, ast.Assign | ast.JoinedStr):
            text = _format(node) if isinstance(node, ast.JoinedStr) else ""
        else:
            continue
        if " " in text.strip():
            yield text


def _format(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _format(node.left) + _format(node.right)
    return CONVERSION.sub(lambda seen: "{" + (seen[1] or "") + "}", _text(node))


def _starts_sessions(tree: ast.Module) -> bool:
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
    keywords = (word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords)
    return any(_text(node.slice) == "start_new_session" for node in stored) or "start_new_session" in keywords


def _default_of(tree: ast.Module, name: str, parameter: str) -> Any:
    found = _function(tree, name)
    if found is None:
        return None
    names = [each.arg for each in found.args.args]
    defaults = dict(zip(reversed(names), reversed(found.args.defaults), strict=False))
    return _default(defaults.get(parameter))


def _thread_names(source: Source, file: str) -> list[str]:
    return THREAD_NAMES.findall((source.read(f"torch/utils/data/_utils/{file}.py") or b"").decode())


def _native(source: Source) -> list[str]:
    library = next((name for name in source.names() if name.startswith(NATIVE_LIBRARY) and name.endswith((".so", ".dylib"))), "")
    content = source.read(library) or b""
    return [name for name in NATIVE_NAMES if b"\0" + name.encode() + b"\0" in content]


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def write(source: Source, folder: Path) -> Path:
    """The table as a file of its version's name."""
    table = record(source)
    path = folder / f"{table['version']}.json"
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, help="wheels, or folders in which torch is installed")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    for place in asked.places:
        print(write(Folder(place) if place.is_dir() else Wheel(place), asked.out))


if __name__ == "__main__":
    main()
