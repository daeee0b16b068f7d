"""`platform keys`: makes, lists and revokes the API keys of the file that `platform serve --key-file` reads."""

from __future__ import annotations

import argparse
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from quire.errors import ConfigError
from quire.records import Command
from quire.server.tenants.edit import create_key, read_file, revoke_key
from quire.server.tenants.key_file import KEY_FIELDS
from quire.server.tenants.scopes import SCOPES
from quire.server.tenants.tenant import Caller, Key

DESCRIPTION = """\
Make, list and revoke the API keys of a key file. A server that uses the file notices every change.

examples:
  platform keys create --key-file keys.yaml acme --expires 90d
  platform keys create --key-file keys.yaml acme --id ci --scopes generate,read --set requests_per_minute=60
  platform keys list --key-file keys.yaml
  platform keys revoke --key-file keys.yaml ci

docs/apis/tenants.md describes the file."""

OWN_FIELDS = ("id", "tenant", "hash", "expires", "scopes", "models", "adapters")
SETTABLE = tuple(name for name in KEY_FIELDS if name not in OWN_FIELDS)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = _action(actions, "create", "make a key and print it; it is stored nowhere else")
    create.add_argument("tenant", metavar="TENANT", help="the tenant of the key; added to the file if it is new")
    create.add_argument("--id", help="name of the key in the file, for revoking it (default: random)")
    create.add_argument("--expires", metavar="WHEN", help="date or time (UTC), or days from now, e.g. 90d")
    create.add_argument("--scopes", metavar="A,B", help=f"of {', '.join(SCOPES)} (default: those of the tenant)")
    create.add_argument("--models", metavar="A,B", help="globs of models that the key may use")
    create.add_argument("--adapters", metavar="A,B", help="globs of adapters that the key may use")
    create.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help=f"a limit: {', '.join(SETTABLE)}"
    )
    listing = _action(actions, "list", "list the keys, without anything secret")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    revoke = _action(actions, "revoke", "remove a key from the file")
    revoke.add_argument("id", metavar="ID", help="id of the key")


def _action(actions: Any, name: str, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=about, description=about)
    parser.add_argument("--key-file", required=True, metavar="FILE", help="the key file")
    return parser


def _run(args: argparse.Namespace) -> int:
    path = Path(args.key_file)
    if args.action == "create":
        made = create_key(path, args.tenant, _fields(args), args.id)
        print(made.secret)
        return 0
    if args.action == "revoke":
        revoke_key(path, args.id)
        print(f"The key {args.id} is revoked.")
        return 0
    rows = [_row(key) for key in read_file(path).keys.values()]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(f"{row['id']}  {row['tenant']}  {row['expires'] or 'never expires'}  {','.join(row['scopes'])}")
    return 0


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if args.expires:
        fields["expires"] = _moment(args.expires)
    for name in ("scopes", "models", "adapters"):
        if value := getattr(args, name):
            fields[name] = [word.strip() for word in value.split(",")]
    for setting in args.set:
        name, equals, value = setting.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in SETTABLE:
            raise ConfigError(f"--set takes NAME=VALUE with a name of {', '.join(SETTABLE)}; got {setting!r:.80}.")
        fields[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return fields


def _moment(text: str) -> str:
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return f"{datetime.now(UTC) + timedelta(days=int(days[1])):%Y-%m-%dT%H:%M:%SZ}"
    return text


def _row(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant.name,
        "expires": key.expires.isoformat() if key.expires else None,
        "scopes": sorted(Caller(key.tenant, key).scopes),
    }


COMMAND = Command("keys", "make, list and revoke the API keys of a key file", _configure, _run)
