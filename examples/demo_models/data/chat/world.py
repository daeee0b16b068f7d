"""The closed little world that the demo chat model knows: the Lantern Isles.

Everything here is invented.  A world this small can be learned completely by a
model of a few million parameters, so a wrong answer of the demo model is a bug
and never "just a gap in its knowledge".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One column of the fact table.

    ``article`` stands before the value inside a sentence ("the otter");
    ``unique`` says that the value names its island, so it can be asked for
    backwards; ``synonyms`` are other words a user may choose.
    """

    name: str
    label: str
    article: str
    unique: bool
    synonyms: tuple[str, ...]


ATTRIBUTES = (
    Attribute("capital", "capital", "", True, ("capital city",)),
    Attribute("river", "river", "the ", True, ("main river",)),
    Attribute("dish", "national dish", "", True, ("dish", "food")),
    Attribute("animal", "national animal", "the ", True, ("animal",)),
    Attribute("flower", "national flower", "the ", True, ("flower",)),
    Attribute("colour", "flag colour", "", False, ("colour", "color", "flag color")),
)

# One line per island: name, then its attributes in the order of ATTRIBUTES.
_TABLE = """
Ambrel    | Torvast   | Linde   | plum soup       | otter    | aster     | blue
Arvia     | Belcast   | Sorn    | honey bread     | heron    | bluebell  | green
Belmora   | Fennick   | Wend    | leek pie        | badger   | camellia  | red
Brinmoor  | Halden    | Tamsel  | barley stew     | lynx     | clover    | white
Cassova   | Orlin     | Ebber   | fig cake        | falcon   | crocus    | yellow
Corwell   | Stavane   | Mirl    | onion tart      | hare     | daffodil  | purple
Dalvory   | Kestrow   | Oust    | pear pudding    | ibex     | dahlia    | orange
Drelling  | Pontero   | Varn    | bean salad      | beaver   | daisy     | black
Elmira    | Solwick   | Genna   | carrot soup     | stork    | fuchsia   | blue
Estermar  | Rundle    | Calder  | walnut bread    | weasel   | gentian   | green
Fenlow    | Maristow  | Ploom   | mushroom pie    | moose    | geranium  | red
Galdria   | Tessaly   | Hisper  | pea stew        | swan     | heather   | white
Hestova   | Dorrin    | Larrow  | cherry cake     | wolf     | hibiscus  | yellow
Iskara    | Noveld    | Skell   | cheese tart     | seal     | iris      | purple
Jorvath   | Ullmere   | Brae    | apple pudding   | raven    | jasmine   | orange
Kelluna   | Pirrin    | Dovet   | potato salad    | gecko    | lavender  | black
Lumeria   | Candlow   | Ister   | pumpkin soup    | fox      | lilac     | blue
Mirestead | Hobarn    | Quell   | rye bread       | crane    | lily      | green
Norvane   | Ilsworth  | Thrane  | salmon pie      | bear     | lotus     | red
Ostrelle  | Grenby    | Yarl    | lentil stew     | owl      | marigold  | white
Pellanor  | Vintry    | Fosse   | almond cake     | turtle   | orchid    | yellow
Quillon   | Esker     | Nimble  | tomato tart     | pony     | pansy     | purple
Rosmark   | Jessup    | Umber   | rice pudding    | puffin   | peony     | orange
Sundrel   | Aldmoor   | Kippen  | cabbage salad   | dolphin  | poppy     | black
Tavira    | Lockrey   | Zell    | fish soup       | camel    | primrose  | blue
Umbrook   | Wyndle    | Ravel   | corn bread      | magpie   | rose      | green
Velsand   | Cobrey    | Arrow   | chicken pie     | goat     | snowdrop  | red
Wexmoor   | Yestin    | Jolt    | turnip stew     | marten   | thistle   | white
Yarrowin  | Bexley    | Pask    | lemon cake      | pelican  | tulip     | yellow
Zephyra   | Quarrin   | Olde    | spinach tart    | newt     | violet    | purple
"""


def _read_table() -> dict[str, dict[str, str]]:
    """Parse the table into ``{island: {attribute name: value}}``."""
    islands: dict[str, dict[str, str]] = {}
    for line in _TABLE.strip().splitlines():
        name, *values = (cell.strip() for cell in line.split("|"))
        islands[name] = {a.name: v for a, v in zip(ATTRIBUTES, values, strict=True)}
    return islands


ISLANDS: dict[str, dict[str, str]] = _read_table()
ISLAND_NAMES: tuple[str, ...] = tuple(ISLANDS)
ANIMALS: tuple[str, ...] = tuple(sorted(row["animal"] for row in ISLANDS.values()))
COLOURS: tuple[str, ...] = tuple(sorted({row["colour"] for row in ISLANDS.values()}))
DISHES: tuple[str, ...] = tuple(row["dish"] for row in ISLANDS.values())

# Places from elsewhere: the model has to say that it does not know them.
REAL_PLACES = (
    "France", "Germany", "Italy", "Spain", "Portugal", "Norway", "Sweden", "Finland",
    "Denmark", "Poland", "Austria", "Hungary", "Greece", "Turkey", "Egypt", "Kenya",
    "Nigeria", "Ghana", "Morocco", "Brazil", "Chile", "Peru", "Argentina", "Colombia",
    "Mexico", "Canada", "Japan", "China", "India", "Vietnam", "Thailand", "Indonesia",
    "Australia", "Iceland", "Ireland", "Scotland", "England", "Wales", "Belgium",
    "Croatia", "Serbia", "Romania", "Bulgaria", "Ukraine", "Russia", "Cuba", "Jamaica",
    "Nepal", "Iran", "Iraq", "Israel", "Paris", "London", "Berlin", "Madrid", "Rome",
    "Oslo", "Vienna", "Tokyo", "Cairo", "Lima", "Texas", "Bavaria", "Atlantis", "Narnia",
    "Mars", "Europe", "Africa", "Asia", "America", "Switzerland",
)  # fmt: skip

# What people ask about places and this world does not record.
UNKNOWN_ATTRIBUTES = (
    "population", "size", "area", "anthem", "president", "king", "queen", "currency",
    "language", "climate", "weather", "history", "motto", "religion", "airport",
    "mayor", "highest mountain", "oldest bridge", "largest lake", "main export",
    "national bird", "national tree", "time zone", "postal code", "phone code",
    "football team", "national drink", "national dance", "government", "best beach",
)  # fmt: skip
