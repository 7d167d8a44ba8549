"""Names of a user's own classes and functions: from a name to the object, and from an object to its name.

A name is `file.py:Name` or `module:Name`; dots in it go into a class. It is what options, a worker's spec and
`policy.json` hold, so none of them holds code. An object that has no name (it was made in a notebook or inside a
function) travels to workers as `pickle:...`; such a text is never written to a file and never read from one. A file has
its mark, by which the process that made the object knows it again.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rlz.errors import ConfigError

PICKLE = "pickle:"

_FILES: dict[str, str] = {}
"""File of each module that was loaded from one by `load`."""

_UNNAMED: dict[str, str] = {}
"""What was pickled in this process, by its mark."""

_LOADING: list[str] = []
"""Files that are being executed right now, the innermost last."""


def loading() -> str | None:
    """The file that is being executed because its name was looked up; None outside of that."""
    return _LOADING[-1] if _LOADING else None


UNNAMED = "<python>"
"""In files, what stands for an object that has no name."""


def label(reference: str) -> str:
    """A short name for people and for names of folders: MyDqn of my_algo.py:MyDqn; what is no such name, as it is."""
    if reference.startswith(PICKLE):
        return UNNAMED
    where, _, name = reference.rpartition(":")
    return name if where.endswith(".py") else reference


def absolute(reference: str) -> str:
    """The same name, wherever the process works: the path of a file is absolute."""
    where, _, name = reference.rpartition(":")
    return f"{Path(where).absolute()}:{name}" if where.endswith(".py") else reference


def file_of(reference: str) -> Path | None:
    """The file that a name leads into; None where it is a module's, or there is no such file."""
    where = Path(reference.rpartition(":")[0])
    return where if where.suffix == ".py" and where.is_file() else None


def leads_nowhere(reference: str) -> bool:
    """The name leads into a file, and there is none."""
    return reference.rpartition(":")[0].endswith(".py") and file_of(reference) is None


def load(reference: str) -> Any:
    """Find the object that a name stands for; its file or module is executed once in a process.

    Raises
    ------
    ConfigError
        There is no such file, module or name, or importing it raised; the user's own error is its cause.
    """
    if reference.startswith(PICKLE):
        import cloudpickle

        return cloudpickle.loads(base64.b64decode(reference.removeprefix(PICKLE)))
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ConfigError(f"{reference}: expected file.py:Name or module:Name")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        missing = error.name or where
        raise ConfigError(
            f"{reference}: there is no module {missing!r}. Install its package into the environment of rlz, or run rlz "
            f"in the folder that holds {missing.partition('.')[0]}."
        ) from error
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{reference}: importing it raised {type(error).__name__}: {error}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [item for item in dir(found) if not item.startswith("_")], n=1)
            raise ConfigError(f"{reference}: {where} has no {part!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        found = getattr(found, part)
    return found


def reference_to(thing: Any) -> str:
    """The name of a class or function; `pickle:...` where it has none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is not None and name is not None and "<" not in name:
        file = _FILES.get(module)
        if module == "__main__":
            file = _guarded(getattr(sys.modules["__main__"], "__file__", None))
        if file is not None and file.endswith(".py"):
            return f"{Path(file).absolute()}:{name}"
        if module != "__main__" and _leads_to(module, name, thing):
            return f"{module}:{name}"
    import cloudpickle

    text = PICKLE + base64.b64encode(cloudpickle.dumps(thing)).decode()
    _UNNAMED[mark(text)] = text
    return text


def mark(reference: str) -> str:
    """What a file holds of a name: itself, or a digest for an object that has none."""
    if not reference.startswith(PICKLE):
        return reference
    return f"{PICKLE}#{hashlib.sha256(reference.encode()).hexdigest()[:16]}"


def marked(text: str) -> str:
    """Inverse of `mark`. Raises ConfigError for an object without a name that another process has made."""
    if not text.startswith(PICKLE):
        return text
    if text not in _UNNAMED:
        raise ConfigError("it was defined in a notebook or inside a function: it has no name to import it by.")
    return _UNNAMED[text]


def files_of(kind: type) -> list[str]:
    """Files whose execution, in this order, makes a class and what it derives from known by their names again."""
    found = (_FILES.get(base.__module__) for base in reversed(kind.__mro__))
    return list(dict.fromkeys(file for file in found if file is not None))


def known_from(file: str) -> None:
    """Execute a file of `files_of` in another process, so that what was pickled by name is found."""
    _from_file(Path(file))


def _guarded(file: str | None) -> str | None:
    """The file of a script that other processes may execute too: it has a main guard."""
    try:
        return file if file is not None and "__main__" in Path(file).read_text() else None
    except (OSError, UnicodeDecodeError):
        return None


def _leads_to(module: str, name: str, thing: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _from_file(path: Path) -> Any:
    """The module of a file. Modules beside it can be imported by it, as from a script."""
    file = path.absolute()
    if not file.is_file():
        raise ConfigError(f"{path}: there is no such file.")
    for name, known in _FILES.items():
        if known == str(file):
            return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    # Its own name where that is free, so that classes are called as in the file.
    name = file.stem if file.stem not in sys.modules else f"{file.stem}_{len(_FILES)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: Python cannot import it.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _FILES[name] = module, str(file)
    _LOADING.append(str(file))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], _FILES[name]
        raise
    finally:
        _LOADING.pop()
    return module
