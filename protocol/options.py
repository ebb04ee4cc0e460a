"""Command lines made from frozen dataclasses: one definition of an option, its default and its help."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints


def option(
    help_text: str, default: Any = dataclasses.MISSING, metavar: str | None = None, *, hidden: bool = False
) -> Any:
    """Return a dataclass field that is an option; without a default it is required. `hidden` keeps it out of --help."""
    return dataclasses.field(default=default, metadata={"help": help_text, "metavar": metavar, "hidden": hidden})


def lifeline_option() -> Any:
    """Return the field for protocol.lifeline.FLAG, which is launch.py's and not a user's."""
    return option("the parent's pipes", None, "READ,WRITE", hidden=True)


def parse_options(
    program: str, description: str, *configs: type[Any], arguments: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """Return one instance of each of `configs`, as one command line describes them (sys.argv if None).

    Field `a_name` is option `--a-name`: bool fields are flags (`--no-a-name` where the default is True), tuples may
    be given again and again, Literals are choices. Unknown options, missing ones and bad values, a `ValueError` from
    a config's `__post_init__` too, end the process with one line and exit code 2.
    """
    parser = _Parser(prog=program, description=description, formatter_class=_HelpFormatter, allow_abbrev=False)
    try:
        return _parsed(parser, configs, arguments)
    except ValueError as error:
        parser.exit(2, f"{program}: {error} (--help lists the options)\n")


def options_of(values: Mapping[str, Any], *configs: type[Any]) -> tuple[Any, ...]:
    """Return one instance of each of `configs`, as `parse_options` would of a command line that says `values`.

    They are called as the fields are; None is the same as leaving one out. Raises `TypeError` for a name that no field
    has, `ValueError` for what a value can't be, both in the command line's words.
    """
    fields = {field.name: field for config in configs for field in dataclasses.fields(config)}
    if unknown := [_name(name) for name in values if name not in fields]:
        raise TypeError(f"unrecognized arguments: {' '.join(unknown)}")
    arguments = [part for name, value in values.items() for part in _arguments(fields[name], value)]
    return _parsed(_Parser(allow_abbrev=False), configs, arguments)


def _parsed(parser: _Parser, configs: Sequence[type[Any]], arguments: Sequence[str] | None) -> tuple[Any, ...]:
    for config in configs:
        hints = get_type_hints(config)
        for field in dataclasses.fields(config):
            _add(parser, field, hints[field.name])
    values = vars(parser.parse_args(arguments))
    return tuple(_made(config, values) for config in configs)


def _made(config: type[Any], values: dict[str, Any]) -> Any:
    hints = get_type_hints(config)
    own = {}
    for field in dataclasses.fields(config):
        value = values[field.name]
        if value is None:
            value = field.default
        elif value == []:
            value = _two_dashes(field, hints[field.name])
        elif isinstance(value, list):
            value = tuple(_two_dashes(field, hints[field.name]) if item == [] else item for item in value)
        own[field.name] = value
    return config(**own)


def _two_dashes(field: dataclasses.Field[Any], hint: Any) -> str:
    """Return what stood behind an option's equals sign if argparse has made an empty list of it.

    Some versions take it for the end of the options.
    """
    if hint is not str and str not in get_args(hint):
        raise ValueError(f"{_name(field.name)}: invalid value: '--'")
    return "--"


def to_arguments(*configs: Any) -> list[str]:
    """Return the command line that `parse_options` turns back into `configs`."""
    arguments = []
    for config in configs:
        for field in dataclasses.fields(config):
            arguments += _arguments(field, getattr(config, field.name))
    return arguments


def _arguments(field: dataclasses.Field[Any], value: Any) -> list[str]:
    name = _name(field.name)
    if value is None or value == field.default:
        return []
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    return [f"{name}={item}" for item in (value if isinstance(value, tuple) else (value,))]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong, and spares its reader the usage of forty options around it."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class _HelpFormatter(argparse.HelpFormatter):
    """Adds each option's default, unless it is None: then the help says in words what that means."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is argparse.SUPPRESS or isinstance(action.default, bool):
            return action.help
        return f"{action.help} (default: %(default)s)"


def _name(field: str) -> str:
    return "--" + field.replace("_", "-")


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], hint: Any) -> None:
    settings: dict[str, Any] = {"help": field.metadata["help"]}
    if field.default is dataclasses.MISSING:
        settings["required"] = True
        settings["default"] = argparse.SUPPRESS  # or the help would speak of a default of None
    elif field.default is not None:
        settings["default"] = field.default
    if get_origin(hint) is types.UnionType:  # X | None: absent is None, and the help says what that means
        hint = next(part for part in get_args(hint) if part is not types.NoneType)
    if hint is bool:
        settings["action"] = argparse.BooleanOptionalAction if field.default else "store_true"
    elif get_origin(hint) is Literal:
        settings["choices"] = get_args(hint)
    elif get_origin(hint) is tuple:
        settings["action"] = "append"
        settings["default"] = None  # argparse would add to a default, and to a list only
        settings["type"] = get_args(hint)[0]
        settings["metavar"] = field.metadata["metavar"]
    else:
        settings["type"] = hint
        settings["metavar"] = field.metadata["metavar"]
    if field.metadata["hidden"]:
        settings["help"] = argparse.SUPPRESS
    parser.add_argument(_name(field.name), **settings)
