"""From preset, file and options to a checked `RunConfig` that knows where each value came from."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rlz.algorithms.registry import BUILT_IN, is_own
from rlz.config.model import config_type
from rlz.config.presets import presets
from rlz.config.schema import RunConfig
from rlz.errors import ConfigError, UsageError
from rlz.options.literals import ToldError
from rlz.options.names import as_typed, close, either, flag, hint
from rlz.options.option import metadata
from rlz.options.values import pairs
from rlz.references import PICKLE, absolute, label, leads_nowhere

COMMAND_LINE = "command line"
PLANNED = "plan"
DEFAULT = "default"


@dataclass(frozen=True)
class Resolved:
    """A configuration and the origin of each value: default, preset ..., a file's name, or command line."""

    config: RunConfig
    origins: dict[str, str]

    def given(self) -> list[str]:
        """Names of the values that the user gave, on the command line or in a file."""
        return [name for name, origin in self.origins.items() if not origin.startswith("preset ")]

    def render(self) -> str:
        """TOML that `--config` reads, each line with its origin as a comment.

        Values that are not set are comments. So are those of a plan: who reads the file plans anew.
        """
        rows = []
        for name, value in self.config.model_dump().items():
            text = f"{name} = {_literal(value)}" if value is not None else f"# {name} is not set"
            origin = self.origins.get(name, DEFAULT)
            if origin.startswith(PLANNED):
                text = f"# {text}"
            field = type(self.config).model_fields[name]
            if origin == DEFAULT and (value is None or field.default_factory is not None):
                origin += f": {metadata(field)['shown']}"
            rows.append((text, origin))
        width = min(max(len(text) for text, _ in rows), 48)
        return "".join(f"{text:<{width}}  # {origin}\n" for text, origin in rows)


def resolve(
    algo: str | None,
    env: str | None,
    overrides: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
) -> RunConfig:
    """`resolve_with_origins` for those who need the configuration alone."""
    return resolve_with_origins(algo, env, overrides, config_file).config


def resolve_with_origins(
    algo: str | None,
    env: str | None,
    overrides: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
) -> Resolved:
    """Merge defaults < preset < file < options, and check the result.

    Parameters
    ----------
    algo, env
        Given on the command line; None takes them from the file.
    overrides
        Options by field name, texts or typed values. `env_kwargs` is merged key by key, all else replaces.
    config_file
        TOML with the field names as keys, for instance a run's `config.toml`.

    Raises
    ------
    UsageError
        An option cannot be used, or algorithm or environment are missing.
    ConfigError
        The file cannot be used.
    """
    given = dict(overrides or {})
    if env is not None:
        given["env"] = env
    filed = read_toml(config_file) if config_file is not None else {}
    name = _algorithm(algo, filed, config_file)
    (given if algo is not None else filed)["algo"] = name
    target = given.get("env", filed.get("env"))
    if isinstance(target, str):
        target = absolute(target)
        (given if "env" in given else filed)["env"] = target
    if target is None:
        raise UsageError(f"Which environment? Give --env, for instance: rlz train {name} --env Ant-v4")

    layers = [(preset.origin, preset.values) for preset in presets(name, str(target))]
    layers += [(str(config_file), filed), (COMMAND_LINE, given)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        for option, value in layer.items():
            if option == "env_kwargs" and option in values:
                values[option] = _merged(values[option], value)
                origins[option] += f", {origin}"
            else:
                values[option] = value
                origins[option] = origin
    _check_files(values, origins)
    config = validate(values, origins)
    _check_used(config, given)
    return Resolved(config, origins)


def _check_files(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse a name of a user's own code that leads into a file which does not exist."""
    for name in ("env", "graph", "network"):
        reference = values.get(name)
        if isinstance(reference, str) and leads_nowhere(reference):
            typed = origins[name] == COMMAND_LINE
            what = as_typed(name, reference) if typed else f"{origins[name]}: {name} = {_literal(reference)}"
            raise (UsageError if typed else ConfigError)(f"{what}: there is no such file.")


def _check_used(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Refuse options of the command line that mean nothing without another one, which is not there."""
    fields = type(config).model_fields
    idle = [
        f"{flag(name)} has no effect without {flag(needed)}. Add {flag(needed)}, or leave {flag(name)} out."
        for name in given
        if name in fields and (needed := metadata(fields[name]).get("needs")) and not getattr(config, needed)
    ]
    if idle:
        raise UsageError("\n".join(idle))


def _merged(lower: Any, upper: Any) -> Any:
    try:
        return {**pairs(lower), **pairs(upper)}
    except ValueError:
        return upper  # `validate` says what is wrong with it


def _algorithm(algo: str | None, filed: dict[str, Any], config_file: Path | None) -> str:
    known = tuple(BUILT_IN)
    name = algo if algo is not None else filed.get("algo")
    name, filed = (absolute(name) if isinstance(name, str) else name), {**filed}
    if "algo" in filed:
        filed["algo"] = absolute(str(filed["algo"]))
    if name is None:
        raise UsageError(f"Which algorithm? It comes first, for instance: rlz train {known[0]} --env Ant-v4")
    if name not in known and not is_own(str(name)):
        what = f"Unknown algorithm {name!r}."
        matches = close(str(name), known)
        if matches:
            what += f" Did you mean {either(matches)}?"
        elif "-v" in str(name):
            what += f" The algorithm comes first: rlz train {known[0]} --env {name}."
        raise (UsageError if algo is not None else ConfigError)(f"{what} Algorithms: {', '.join(known)}.")
    if filed.get("algo", name) != name:
        raise UsageError(f"The command line says {name}, but {config_file} says algo = {filed['algo']!r}.")
    return str(name)


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse TOML text, or a file when given a `Path`, and refuse unknown keys. ConfigError otherwise."""
    text, origin = source, "TOML text"
    if isinstance(source, Path):
        origin = str(source)
        try:
            text = source.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{origin} is not a TOML file: it is not UTF-8 text.") from error
        except FileNotFoundError as error:
            near = close(source.name, [item.name for item in source.parent.glob("*.toml")])
            also = f" Did you mean {either([str(source.parent / item) for item in near])}?" if near else ""
            raise ConfigError(f"There is no file {origin}.{also}") from error
        except OSError as error:
            raise ConfigError(f"Cannot read {origin}: {error.strerror}.") from error
    try:
        data = tomllib.loads(str(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not TOML: {error}.{_looks_like(str(text))}") from error
    for key, value in data.items():
        if isinstance(value, str) and value.startswith(PICKLE):
            raise ConfigError(f"{origin}: {key} holds an object. A file holds names only, such as file.py:Name.")
    known = list(known_options())
    unknown = [key for key in data if key not in known] if not is_own(str(data.get("algo", ""))) else []
    if unknown and len(unknown) == len(data):
        first = hint(unknown[0], known, as_option=False)
        raise ConfigError(
            f"{origin} holds none of rlz's keys (its first is {unknown[0]!r}): is it another program's file? "
            f"{first + ' ' if first else ''}Keys are option names with underscores, such as batch_size = 256."
        )
    if unknown:
        lines = [f"{origin}: unknown {_key(key, data[key])}. {_key_hint(key, data[key])}".rstrip() for key in unknown]
        raise ConfigError("\n".join(lines))
    return data


def _key(name: str, value: Any) -> str:
    return f"section [{name}]" if isinstance(value, dict) else f"key {name!r}"


def _key_hint(name: str, value: Any) -> str:
    found = hint(name, known_options(), as_option=False)
    return found or ("Keys stand at the top of the file, without sections." if isinstance(value, dict) else "")


def _looks_like(text: str) -> str:
    """Name the format of a text that is no TOML, where it is a common one."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith(("{", "[{")):
        return " It looks like JSON: write key = value, one per line."
    if re.search(r"^[ \t]*[\w.\-/\"']+:([ \t]|$)", text, re.MULTILINE):
        return " It looks like YAML: write key = value."
    return ""


def known_options() -> dict[str, FieldInfo]:
    """Every option that a run of any of rlz's algorithms has, by field name."""
    return {name: field for algo in reversed(list(BUILT_IN)) for name, field in config_type(algo).model_fields.items()}


def of_others(name: str, algo: str) -> str:
    """What to say where an option is other algorithms' alone; nothing else."""
    owners = [other for other in BUILT_IN if name in config_type(other).model_fields]
    if not owners or name in config_type(algo).model_fields:
        return ""
    return f"{flag(name)} is an option of {either(owners, 'and')}, not of {label(algo)}. Leave it out."


def validate(values: Mapping[str, Any], origins: Mapping[str, str]) -> RunConfig:
    """Check values; the error gives option or key, the value, what is allowed, and where the value came from.

    UsageError when a value of the command line is to blame, ConfigError otherwise.
    """
    model = config_type(str(values.get("algo", RunConfig.model_fields["algo"].default)))
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines: list[str] = []
        usage = False
        for item in error.errors(include_url=False):
            name = str(item["loc"][0]) if item["loc"] else ""
            if item["type"] == "default_factory_not_called":
                continue  # follows from the error of the field before it
            on_command_line = COMMAND_LINE in (origins.get(name, "") if name else set(origins.values()))
            line = _explain(model, name, item, values, None if on_command_line else origins.get(name))
            usage = usage or on_command_line
            if line not in lines:
                lines.append(line)
        raise (UsageError if usage else ConfigError)("\n".join(lines)) from None


def _explain(
    model: type[RunConfig], name: str, item: ErrorDetails, values: Mapping[str, Any], origin: str | None
) -> str:
    if not name:
        return str(item["ctx"]["error"]) if "ctx" in item else item["msg"]
    if item["type"] == "missing":
        return f"{flag(name)} is missing."
    if item["type"] == "extra_forbidden":
        if others := of_others(name, str(values.get("algo"))):
            return others
        return f"Unknown option {name!r}. {hint(name, model.model_fields, as_option=False)}".rstrip()
    field = model.model_fields[name]
    value = values[name]
    what = as_typed(name, value) if origin is None else f"{origin}: {name} = {_literal(value)}"
    told = item.get("ctx", {}).get("error")
    if isinstance(told, ToldError):
        return f"{what}: {told}."
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    near = close(str(value), choices)
    also = f" Did you mean {either(near)}?" if near else ""
    return f"{what}: expected {expects(field)}.{also}"


def expects(field: FieldInfo) -> str:
    """What a field may hold, in words."""
    stated = metadata(field)["expects"]
    if stated:
        return str(stated)
    if get_origin(field.annotation) is Literal:
        return either([str(choice) for choice in get_args(field.annotation)])
    if field.annotation is bool:
        return "true or false"
    if field.annotation is str:
        return "a text that is not empty"
    limits = {
        name: getattr(rule, name) for rule in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(rule, name)
    }
    kind = "an integer" if _whole(field) else "a number"
    if "le" in limits:
        low = f"from {limits['ge']} to" if "ge" in limits else f"above {limits['gt']} and at most"
        return f"{kind} {low} {limits['le']}"
    return f"{kind} of at least {limits['ge']}" if "ge" in limits else f"{kind} above {limits['gt']}"


def _whole(field: FieldInfo) -> bool:
    """The field holds integers; it may also be unset."""
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in get_args(field.annotation)]
    return field.annotation is int or int in kinds


def to_toml(values: Mapping[str, Any]) -> str:
    """One `key = value` line per value that is set; tables are written inline so that order does not matter."""
    return "".join(f"{name} = {_literal(value)}\n" for name, value in values.items() if value is not None)


def _literal(value: Any) -> str:
    """TOML form of a value; anything TOML does not have is shown as Python writes it (error messages only)."""
    if isinstance(value, dict):
        inner = ", ".join(f"{tomli_w.dumps({str(key): 0})[:-5]} = {_literal(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    try:
        return tomli_w.dumps({"v": value})[4:-1]
    except TypeError:
        return repr(value)
