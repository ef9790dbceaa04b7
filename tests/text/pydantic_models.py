"""Models as users of Pydantic 2 write them, one or more for each kind of field.

    pydantic_models.py schemas       prints {MODEL: SCHEMA}
    pydantic_models.py validate      reads [[MODEL, TEXT]...], prints the errors

Left out are fields whose schema allows what the model refuses. The schema of Decimal allows any string, the schema of
dict[int, X] any key, and a pattern of keys does not forbid others.
"""

import datetime
import decimal
import enum
import ipaddress
import json
import sys
import uuid
from typing import Annotated, Any, Dict, FrozenSet, Generic, List, Literal, NamedTuple, Optional, Set, Tuple, TypeVar, Union

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr, StringConstraints, WithJsonSchema
from typing_extensions import TypedDict


class Plain(BaseModel):
    name: str
    age: int
    height: float
    alive: bool


class WithNone(BaseModel):
    nothing: None
    name: Optional[str]
    age: Optional[int] = None
    home: Union[str, None] = "forest"


class Defaults(BaseModel):
    name: str = "fox"
    count: int = 3
    tags: List[str] = []
    made: List[int] = Field(default_factory=list)


class Described(BaseModel):
    """A model with documentation."""

    name: str = Field(title="The name", description="How it is called", examples=["fox"])
    deprecated_name: str = Field("", json_schema_extra={"deprecated": True})


class Literals(BaseModel):
    one: Literal["fox"]
    some: Literal["fox", "owl", 3, True, None]
    number: Literal[1, 2, 3]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    A = "a"
    B = 2


class Only(enum.Enum):
    IT = "it"


class Enums(BaseModel):
    colour: Colour
    level: Level
    mixed: Mixed
    only: Only
    default: Colour = Colour.RED


class Unions(BaseModel):
    value: Union[int, str]
    many: Union[int, float, bool, None, List[int]]


class Inner(BaseModel):
    x: int
    y: int


class Nested(BaseModel):
    inner: Inner
    maybe: Optional[Inner] = None
    described: Inner = Field(description="With a description")
    default: Inner = Inner(x=1, y=2)


class NestedInLists(BaseModel):
    inners: List[Inner]
    by_name: Dict[str, Inner]
    deep: List[Dict[str, List[Inner]]]


class Node(BaseModel):
    value: int
    next: Optional["Node"] = None


class Tree(BaseModel):
    name: str
    children: List["Tree"] = []


class Employee(BaseModel):
    name: str
    firm: Optional["Firm"] = None


class Firm(BaseModel):
    name: str
    staff: List[Employee] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]
    barks: bool


class Fish(BaseModel):
    kind: Literal["fish"] = "fish"
    depth: float


class TaggedUnion(BaseModel):
    pet: Union[Cat, Dog] = Field(discriminator="kind")


class TaggedList(BaseModel):
    pets: List[Annotated[Union[Cat, Dog], Field(discriminator="kind")]]


class TaggedOptional(BaseModel):
    pet: Optional[Annotated[Union[Cat, Dog], Field(discriminator="kind")]] = None


class Bird(BaseModel):
    kind: Literal["bird"] = "bird"
    height: float


class TagsWithDefaults(BaseModel):
    pet: Union[Fish, Bird, Cat] = Field(discriminator="kind")


class Circle(BaseModel):
    shape: Literal["circle"]
    round: Literal[True]


class Square(BaseModel):
    shape: Literal["square"]
    size: Literal["small", "large"]
    side: int


class Bar(BaseModel):
    shape: Literal["bar"]
    size: Literal["long"]


class NestedTags(BaseModel):
    thing: Union[Cat, Dog, "Group"] = Field(discriminator="kind")


class Group(BaseModel):
    kind: Literal["group"]
    things: List[Annotated[Union[Cat, Dog, "Group"], Field(discriminator="kind")]]


class RecursiveTags(BaseModel):
    top: Group


class TagsWithin(BaseModel):
    shape: Annotated[Union[Circle, Square, Bar], Field(discriminator="shape")]
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]


class Kind(str, enum.Enum):
    LEAF = "leaf"
    PAIR = "pair"


class Leaf(BaseModel):
    kind: Literal[Kind.LEAF]
    value: int


class Pair(BaseModel):
    kind: Literal[Kind.PAIR]
    left: "Expression"
    right: "Expression"


Expression = Annotated[Union[Leaf, Pair], Field(discriminator="kind")]
Pair.model_rebuild()


class TagsOfEnum(BaseModel):
    expression: Expression


class StrictCat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["cat"] = Field(alias="@type")
    name: str


class StrictDog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"] = Field(alias="@type")
    name: str


class TagsByAlias(BaseModel):
    pet: Union[StrictCat, StrictDog] = Field(discriminator="kind")


class UntaggedUnion(BaseModel):
    pet: Union[Cat, Dog, Inner]


class Strings(BaseModel):
    short: Annotated[str, StringConstraints(max_length=5)]
    long: Annotated[str, StringConstraints(min_length=3, max_length=8)]
    pattern: Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}-\d{3}$")]
    con: pydantic.constr(min_length=1, pattern="^[a-z]+$")


class Numbers(BaseModel):
    positive: pydantic.PositiveInt
    natural: pydantic.NonNegativeInt
    negative: pydantic.NegativeInt
    share: Annotated[float, Field(ge=0, le=1)]
    over: Annotated[float, Field(gt=0.5, lt=7.25)]
    even: Annotated[int, Field(multiple_of=2)]
    range: pydantic.conint(ge=-5, le=5)


class Times(BaseModel):
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time


class AwareTimes(BaseModel):
    at: pydantic.AwareDatetime


class Durations(BaseModel):
    takes: datetime.timedelta


class Ids(BaseModel):
    id: uuid.UUID
    other: Optional[uuid.UUID] = None


class VersionedIds(BaseModel):
    one: pydantic.UUID1
    three: pydantic.UUID3
    four: pydantic.UUID4
    five: pydantic.UUID5


class Decimals(BaseModel):
    price: Annotated[decimal.Decimal, WithJsonSchema({"type": "number", "minimum": -1000, "maximum": 1000})]
    share: Annotated[decimal.Decimal, Field(ge=0, le=1), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]


class Bytes(BaseModel):
    data: bytes


class BytesOfLength(BaseModel):
    data: Annotated[bytes, Field(min_length=3)]


class Dicts(BaseModel):
    numbers: Dict[str, int]
    texts: Dict[str, str] = {}
    anything: Dict[str, Any] = {}
    bare: dict = {}


class DictOfLiterals(BaseModel):
    by_name: Dict[Literal["fox", "owl"], int]


class DictOfEnum(BaseModel):
    by_colour: Dict[Colour, int]


class DictOfLength(BaseModel):
    some: Annotated[Dict[str, int], Field(min_length=1, max_length=3)]


class Tuples(BaseModel):
    pair: Tuple[int, str]
    many: Tuple[int, ...]
    bare: tuple = ()
    empty: Tuple[()] = ()


class Point(NamedTuple):
    x: int
    y: int = 0


class NamedTuples(BaseModel):
    point: Point


class Lists(BaseModel):
    numbers: List[int]
    some: Annotated[List[int], Field(min_length=1, max_length=3)]
    bare: list = []
    nested: List[List[bool]] = []


class SetOfBooleans(BaseModel):
    flags: Set[bool]


class SetOfLiterals(BaseModel):
    names: Set[Literal["fox", "owl", "bear"]]


class SetOfEnum(BaseModel):
    colours: FrozenSet[Colour]
    levels: Set[Level] = set()


class SetOfLength(BaseModel):
    names: Annotated[Set[Literal["a", "b", "c", "d"]], Field(min_length=1, max_length=2)]


class Secrets(BaseModel):
    password: SecretStr
    key: SecretBytes


class Aliased(BaseModel):
    name: str = Field(alias="fullName")
    age: int = Field(validation_alias="theAge", serialization_alias="outAge")
    odd: int = Field(alias="odd/key~ \"ä\"")


class CamelCase(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.title().replace("_", ""))
    first_name: str
    last_name: str = ""


class Forbid(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    age: int = 0


class Allow(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class AllowTyped(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Dict[str, int]
    name: str


class Titled(BaseModel):
    model_config = ConfigDict(title="Another title", json_schema_extra={"examples": [{"name": "fox"}]})
    name: str


class Movie(TypedDict):
    name: str
    year: int


class Partial(TypedDict, total=False):
    name: str
    year: int


class TypedDicts(BaseModel):
    movie: Movie
    partial: Partial


@pydantic.dataclasses.dataclass
class Data:
    x: int
    y: float = 0.0


class Dataclasses(BaseModel):
    data: Data


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T
    others: List[T] = []


class Generics(BaseModel):
    numbers: Box[int]
    inners: Box[Inner]


class Addresses(BaseModel):
    four: ipaddress.IPv4Address
    six: ipaddress.IPv6Address


class AnyValue(BaseModel):
    value: Any
    thing: object = None


class JsonValues(BaseModel):
    value: pydantic.JsonValue


class Computed(BaseModel):
    side: int

    @pydantic.computed_field
    @property
    def area(self) -> int:
        return self.side**2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    number: int
    text: str
    flag: bool


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str


class Names(pydantic.RootModel):
    root: List[str]


class RootUnion(pydantic.RootModel):
    root: Annotated[Union[Cat, Dog], Field(discriminator="kind")]


class Parent(BaseModel):
    name: str


class Child(Parent):
    age: int
    name: Literal["fox", "owl"]


class Empty(BaseModel):
    pass


class EmptyForbid(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Step(BaseModel):
    explanation: str
    output: str


class MathReasoning(BaseModel):
    """A chain of steps, as tutorials on structured output have it."""

    steps: List[Step]
    final_answer: str


class ToolCall(BaseModel):
    tool: Literal["search"]
    query: str


class Answer(BaseModel):
    tool: Literal["answer"]
    text: str
    confidence: Annotated[float, Field(ge=0, le=1)]


class Agent(BaseModel):
    thoughts: Annotated[str, Field(max_length=40)]
    action: Union[ToolCall, Answer] = Field(discriminator="tool")


MODELS = [
    Plain, WithNone, Defaults, Described, Literals, Enums, Unions, Nested, NestedInLists, Node, Tree, Employee, TaggedUnion,
    TaggedList, TaggedOptional, TagsWithDefaults, NestedTags, RecursiveTags, TagsWithin, TagsOfEnum, TagsByAlias,
    UntaggedUnion, Strings, Numbers, Times, AwareTimes, Durations, Ids, VersionedIds, Decimals, Bytes, BytesOfLength, Dicts,
    DictOfLiterals, DictOfEnum, DictOfLength, Tuples, NamedTuples, Lists, SetOfBooleans, SetOfLiterals, SetOfEnum,
    SetOfLength, Secrets, Aliased, CamelCase, Forbid, Allow, AllowTyped, Titled, TypedDicts, Dataclasses, Generics,
    Addresses, AnyValue, JsonValues, Computed, Strict, Frozen, Names, RootUnion, Child, Empty, EmptyForbid, MathReasoning,
    Agent,
]
# Before 2.10, the schema did not say which keys there are.
if tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 10):
    MODELS = [model for model in MODELS if model not in (DictOfLiterals, DictOfEnum)]


def error_of(name, text):
    try:
        globals()[name].model_validate_json(text)
    except pydantic.ValidationError as error:
        return f"{name}: {text!r}: {error}"
    return None


if __name__ == "__main__":
    if sys.argv[1] == "schemas":
        print(json.dumps({model.__name__: model.model_json_schema() for model in MODELS}))
    else:
        print(json.dumps([error for name, text in json.load(sys.stdin) if (error := error_of(name, text))]))
